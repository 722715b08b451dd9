"""What one engine process holds: its pools, store, buffer and transport."""
