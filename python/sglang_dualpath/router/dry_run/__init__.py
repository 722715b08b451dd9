"""`launch_router --dry-run TRACE`: what a policy would decide, without engines."""
