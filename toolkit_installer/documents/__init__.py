"""Configuration files as text: what they mean, and edits that touch nothing but what they must. Pure."""
