"""What on the node still needs the toolkit's binaries, so that they stay: containers, specifications, files."""
