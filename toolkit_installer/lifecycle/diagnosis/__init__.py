"""Illnesses of a node that no program reports by itself: what `diagnose` reads, and the findings."""
