"""One room per engine: where its files are, how a handler is added and removed, how it is checked and reloaded."""
