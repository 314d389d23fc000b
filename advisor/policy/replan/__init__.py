"""Plans the pending jobs anew: which place each should wait for, in which order, and beside whom.

The rule behind the levers `place`, `order` and `share`: pure functions on arrays, so that the simulator's rounds and
the daemon's use the same one. Same problem, same seed: the same plan.
"""

from __future__ import annotations

from advisor.policy.replan.problem import OBJECTIVES, Plan, Sharing, Waiting
from advisor.policy.replan.rule import plan_pools, plan_sharing

__all__ = ["OBJECTIVES", "Plan", "Sharing", "Waiting", "plan_pools", "plan_sharing"]
