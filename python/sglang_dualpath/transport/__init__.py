"""Moving Layer Blocks between engines."""
