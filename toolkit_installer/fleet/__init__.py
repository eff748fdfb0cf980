"""Captures of nodes: recorded, replayed anywhere, and compared."""
