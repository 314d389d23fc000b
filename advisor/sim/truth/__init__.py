"""How true the simulator is: the same jobs through a real Slurm and through the simulator, side by side.

`drive` submits a workload to a mini-cluster and reads from slurmctld's own log, to the millisecond, what
became of it; `measure` finds the latencies there that the simulator takes as parameters; `compare` says how far the
two agree. `scripts/bench/truth` and a test use it; docs/truth.md explains the figures.
"""
