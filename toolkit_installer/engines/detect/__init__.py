"""Detection of the node's engine and distribution, and of the places of their files."""
