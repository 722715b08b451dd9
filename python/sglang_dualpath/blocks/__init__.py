"""What a KV block is: its shape, its key, and how it leaves and enters paged pools."""
