"""Reverts an installation by its receipt, or the leftovers of an installer without a receipt; engines first."""
