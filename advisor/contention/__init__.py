"""How jobs on one node slow each other down: counters to utilisations to slowdown."""
