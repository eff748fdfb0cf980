"""Reverts what a receipt records, or what an installer without a receipt left; engines first."""
