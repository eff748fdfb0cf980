"""Parsing, minimal editing, diffing and masking of configuration files as text. Pure."""
