"""The scheduling core of a router: its servers, its queue, its policy."""
