"""The discrete-event simulator that runs the daemon's own decision code."""
