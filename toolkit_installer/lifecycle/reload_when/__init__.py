"""When an engine may be reloaded (`--reload-when`): at once, while no GPU container runs, or in a window of time."""
