"""SGLang on a machine without an accelerator: an out-of-tree platform for plain CPUs."""
