"""Where Full Blocks persist, and how they are read."""
