"""The Kubernetes API server: queries, what the responses mean for this node, and reports to it."""
