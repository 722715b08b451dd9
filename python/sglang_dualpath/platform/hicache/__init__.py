"""Upstream's HiCache on a CPU: its host pools without pinned memory and without CUDA copies."""
