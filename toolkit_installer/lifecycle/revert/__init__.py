"""Reverting: undoes what a receipt records, or what an installer without one left; engines first."""
