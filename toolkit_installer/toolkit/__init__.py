"""The toolkit: the payload's files, the files that are installed, and their configuration. Pure."""
