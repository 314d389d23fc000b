"""slurm-advisor: advice on partition and gres at submission, for an unmodified Slurm."""

__version__ = "0.1.0"
