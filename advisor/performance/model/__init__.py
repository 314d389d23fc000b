"""The run-time model: a distribution of an app's run time on a kind of processor, learned from how jobs ended.

Everything here needs numpy and scipy and runs in the background (the collector, `advisor retrain`, benchmarks); the hot
path only reads the small table that `advisor.performance.model.table` makes of it.
"""
