"""containerd: its files, the handlers in them, and the live daemon."""
