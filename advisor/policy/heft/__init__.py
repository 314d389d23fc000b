"""HEFT (heterogeneous earliest finish time): the longest way to the end goes first, each step where it ends soonest.

`ranks` orders whatever depends on each other (jobs, kernels of one job); `kernels` schedules a job's dataflow graph
on one node; `rule` is the daemon's policy.
"""
