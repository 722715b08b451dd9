"""Attention on a CPU: every head layout (MHA, GQA, MQA, absorbed MLA) over upstream's paged KV pools."""
