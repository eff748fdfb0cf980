"""The command line: commands, options, and what is shown. The only place that turns errors into exit codes."""
