"""What a reload of an engine touches on the node, told before it is done: other units, and running containers."""
