"""Parts of the router benchmark."""
