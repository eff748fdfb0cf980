"""The command line: commands, options and output. Only this package turns errors into exit codes."""
