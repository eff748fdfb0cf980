"""The node's files, processes, programs and services: the only subpackage with side effects.

It knows nothing of toolkits, engines or handlers: it reads files with their metadata, replaces them atomically, runs
programs, finds and signals processes, and restarts units.
"""
