"""Carries a plan out: files, receipt, reload of the engines, verification."""
