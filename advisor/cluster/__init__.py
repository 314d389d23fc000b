"""The cluster as plain immutable types, and the sources that fill them: Slurm's commands, pyslurm, a recording."""
