"""What a prefill and a decode engine say to each other about one request's KV."""
