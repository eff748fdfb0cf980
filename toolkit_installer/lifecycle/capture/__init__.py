"""What a node shows, kept in one file, and planned against anywhere: without the node, and without touching it."""
