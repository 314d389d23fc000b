"""What to advise: which jobs may be changed, where they could go, and which place is best."""
