"""The demo: real SGLang and a real small model on this machine, one read path against both."""
