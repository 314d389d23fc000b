"""How long jobs take: run time of an app on a processor type, and the wait in front of it."""
