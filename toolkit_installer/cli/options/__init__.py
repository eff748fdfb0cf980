"""Every flag, alias, variable and default, and how they become Settings. Pure."""
