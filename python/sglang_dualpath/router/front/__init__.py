"""The HTTP front: what clients talk to."""
