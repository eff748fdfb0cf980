"""A run from start to end: converge, wait, converge again, clean up."""
