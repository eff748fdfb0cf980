"""One run from start to end: converge, wait, converge again, leave."""
