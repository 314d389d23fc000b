"""The demonstration: a mixed workload on a mini-cluster, once with Slurm alone and once advised."""
