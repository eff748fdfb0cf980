"""The files of the node: looked up beneath its root, read with their metadata, replaced atomically."""
