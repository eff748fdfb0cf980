"""docker: its daemon.json, the handlers in it, and the live daemon."""
