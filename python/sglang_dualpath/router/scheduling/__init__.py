"""Pure scheduling: no I/O, driven by the router and by anything that wants to simulate it."""
