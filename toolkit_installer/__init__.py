"""Configure a node to run GPU containers, and revert every change on exit."""

__version__ = "0.1.0"
