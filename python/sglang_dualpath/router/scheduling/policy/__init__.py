"""The policies: each chooses the prefill engine of one request at a time."""
