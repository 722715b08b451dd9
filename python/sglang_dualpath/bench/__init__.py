"""Agent workloads: made, replayed against real servers, measured, compared."""
