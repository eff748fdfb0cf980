"""What the API server says of this node, and what that means for it."""
