"""What a job computes: the annotation users write, its limits, and the dataflow graph it describes."""
