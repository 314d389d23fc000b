"""The policies there are, by the name a site writes in `policy.name`."""

from __future__ import annotations

from collections.abc import Callable

from advisor.config import ConfigError
from advisor.performance.processors import load
from advisor.policy.arithmetic import EarliestFinish
from advisor.policy.gavel import PLACED
from advisor.policy.gavel.rule import most_owed
from advisor.policy.guarded import Guarded, learned
from advisor.policy.heft.rule import ByKernels
from advisor.policy.interface import Policy
from advisor.policy.paragon.rule import Greedy
from advisor.policy.rules import RULES, Rescore, Rescored
from advisor.settings import Settings


def _rescored(name: str, rescore: Callable[[Settings], Rescore]) -> Callable[[Settings], Policy]:
    return lambda settings: Rescored(name, EarliestFinish(load(settings.processors)), rescore(settings))


def _always(rescore: Rescore) -> Callable[[Settings], Rescore]:
    return lambda settings: rescore


POLICIES: dict[str, Callable[[Settings], Policy]] = {
    EarliestFinish.name: lambda settings: EarliestFinish(load(settings.processors)),
    Guarded.name: learned,
    **{name: _rescored(name, _always(rescore)) for name, rescore in RULES.items()},
    "paragon": _rescored("paragon", lambda _: Greedy()),
    "heft": _rescored("heft", lambda settings: ByKernels(load(settings.processors))),
    **{name: _rescored(name, _always(most_owed)) for name in PLACED},
}


def make_policy(settings: Settings, name: str | None = None) -> Policy:
    """The policy the settings name, or `name`; raises `ConfigError` where there is none of that name."""
    wanted = name or settings.policy.name
    if wanted not in POLICIES:
        raise ConfigError(f"policy.name: there is no policy {wanted!r}; there are {', '.join(sorted(POLICIES))}")
    return POLICIES[wanted](settings)
