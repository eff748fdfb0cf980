"""The node, and the only place with effects.

It knows nothing of toolkits, engines or handlers: it reads files with their metadata, replaces them atomically,
runs programs, finds and signals processes, restarts units.
"""
