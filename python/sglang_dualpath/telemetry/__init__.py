"""What an engine tells of itself: counters, load reports, read plans."""
