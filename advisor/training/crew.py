"""`advisor retrain` on several ranks: the first does the retrain, the others take part in what is worth sharing.

That is the simulation of the site (each rank plays some of its histories) and the policy's tuning (each rank plays and
differentiates some of the forks). What they need for it is told to them, so that only the first rank need see the log
and the models, and it alone writes. Alone, nothing of torch.distributed is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Literal

import msgspec

from advisor.settings import Processor, Settings
from advisor.training.calibrated import HISTORIES, History, Site, compare, play_histories, summary
from advisor.training.gate import Simulated
from advisor.training.policy_stage import Lesson, PolicyStage, tuned
from advisor.training.ranks import RankLost, slurm_rank

Say = Callable[[str], None]


class Work(msgspec.Struct, frozen=True):
    """What all ranks do next."""

    what: Literal["simulate", "tune", "go home", "give up"]
    seed: int = 0
    processors: dict[str, Processor] = {}
    site: Site | None = None
    best: History = {}
    new: History = {}
    old: History = {}
    lesson: Lesson | None = None


class Crew:
    """The ranks of one retrain, as the first of them sees them."""

    def __init__(self) -> None:
        """Meets the others, where there are any; raises `RankLost`."""
        self._rank, self.ranks = slurm_rank()
        if self.ranks > 1:
            from advisor.training.distributed import join

            join()

    @property
    def first(self) -> bool:
        """Whether this is the rank that does the retrain."""
        return self._rank == 0

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """The retrain is over; the others end as it did. Where one is lost, the rest will notice by themselves."""
        if self.ranks > 1 and self.first and not isinstance(error, RankLost):
            from advisor.training.distributed import leave

            self._hand_out(Work("go home" if error is None else "give up"))
            leave()

    def simulate(
        self, site: Site, best: History, new: History, old: History, settings: Settings, seed: int
    ) -> Simulated:
        """`calibrated.compare`, with a part of the histories on each rank."""
        if self.ranks == 1:
            return compare(site, best, new, old, settings, seed)
        work = Work("simulate", seed, dict(settings.processors), site, best, new, old)
        self._hand_out(work)
        return summary(site, self._simulated(work, site))

    def tune(self, lesson: Lesson, settings: Settings, say: Say) -> tuple[PolicyStage, bytes | None]:
        """`policy_stage.tuned`, with a part of the forks on each rank."""
        if self.ranks > 1:
            self._hand_out(Work("tune", processors=dict(settings.processors), lesson=lesson))
        return tuned(lesson, settings, say)

    def assist(self) -> bool:
        """Does what the first rank hands out until it is over; whether all went well. Raises `RankLost`."""
        from advisor.training.distributed import hear, leave

        while True:
            work = msgspec.msgpack.decode(hear(), type=Work)
            settings = Settings(processors=work.processors)
            if work.what == "simulate" and work.site is not None:
                self._simulated(work, work.site)
            elif work.what == "tune" and work.lesson is not None:
                tuned(work.lesson, settings, lambda _: None)
            else:
                leave()
                return work.what == "go home"

    def _hand_out(self, work: Work) -> None:
        from advisor.training.distributed import tell

        tell(msgspec.msgpack.encode(work))

    def _simulated(self, work: Work, site: Site) -> list[tuple[float, float]]:
        from advisor.training.distributed import dealt_results

        settings = Settings(processors=work.processors)
        mine = play_histories(
            site, work.best, work.new, work.old, settings, work.seed, range(self._rank, HISTORIES, self.ranks)
        )
        new, old = (dealt_results([pair[k] for pair in mine], HISTORIES) for k in (0, 1))
        return list(zip(new, old, strict=True))
