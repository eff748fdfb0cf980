"""The NRI plugin, served while a run waits: by a process beside the run, as an answer has no time for anything else."""
