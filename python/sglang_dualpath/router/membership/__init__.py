"""The engine servers the router knows, and which of them may get requests."""
