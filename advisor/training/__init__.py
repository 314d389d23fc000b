"""Learning from the simulator and from the log."""
