"""The Container Runtime Interface, as far as it is asked here: version, status, handlers."""
