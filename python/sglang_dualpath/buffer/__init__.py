"""The DRAM buffer in which blocks pause between store, peer and device."""
