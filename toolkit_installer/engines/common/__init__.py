"""Code shared by all engines: querying, finding, testing, reloading and waiting for an engine."""
