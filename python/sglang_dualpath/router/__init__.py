"""The router that users talk to: one prefill and one decode engine for each request, and the side that reads its KV."""
