"""The durable record of what was changed on the node, and of what stood there before."""
