"""The page at `/dashboard`."""
