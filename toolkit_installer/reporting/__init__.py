"""What the program reports of a node: status, diagnosis, support bundle, node condition, events and metrics."""
