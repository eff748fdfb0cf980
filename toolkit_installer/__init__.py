"""Make a node able to run GPU containers, and take every change back on exit."""

__version__ = "0.1.0"
