"""Which engine and which distribution the node has, and where they keep their files."""
