"""What a run does while it waits: the idle process, and what wakes it."""
