"""The request body: what the router reads of it, and what it adds. Pure, and cheap for prompts of 100,000 tokens."""
