"""One run, from the first look at the node until the node is as it was. Each step has a module of its own."""
