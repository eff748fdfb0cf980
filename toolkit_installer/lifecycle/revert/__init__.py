"""Reverting: what a receipt records, or an installer without one left, is taken back; engines first."""
