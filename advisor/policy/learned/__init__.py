"""The learned policy: a network whose answer is a correction of the arithmetic's score (see docs/learning.md).

In the daemon it is numpy alone; torch is imported only by `advisor.policy.learned.network`, which training uses.
"""

from advisor.policy.learned.files import Card, ModelError, read_model, write_model
from advisor.policy.learned.policy import LearnedPolicy, load_or_arithmetic

__all__ = ["Card", "LearnedPolicy", "ModelError", "load_or_arithmetic", "read_model", "write_model"]
