"""Outcomes and counters: the sacct collector, and the agent on each node."""
