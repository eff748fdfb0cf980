"""One folder for each engine: its files, how a handler is added and removed, how it is checked and reloaded."""
