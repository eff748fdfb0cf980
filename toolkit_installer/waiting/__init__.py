"""A waiting run: the idle process, and the events that wake it."""
