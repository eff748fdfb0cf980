"""What is shown of a fleet."""
