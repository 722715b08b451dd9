"""Small checkpoints to try everything with: random ones of every attention kind, and one that really speaks."""
