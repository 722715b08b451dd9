"""The decode side: reading, receiving, admission and persistence."""
