"""Applies a plan: files, receipt, reload of the engines, verification."""
