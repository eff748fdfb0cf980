"""Files that are put in place on the node: the toolkit's, CDI specifications, and the engines'."""
