"""The prefill side: reading, layer-by-layer loading and streaming."""
