"""Dual-path KV loading and two-choice routing for SGLang prefill/decode serving."""
