"""One package per engine: its files, how a handler is added and removed, and how it is checked and reloaded."""
