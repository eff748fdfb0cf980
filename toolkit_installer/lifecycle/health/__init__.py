"""How a node stands: what is found on it, and the verdict on that."""
