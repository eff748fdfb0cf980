"""The distributions that bring a containerd whose files they make: one module each, and the list of them."""
