"""The learned policy with the arithmetic behind it: whatever is wrong with the network, a decision is made in time.

Falls back where the model is missing or damaged, fails, says that it is unsure, or was too slow several times in a row;
then it rests for a while, longer each time. Every decision says who made it, and why it was not the network.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

import msgspec

from advisor.performance.processors import load
from advisor.performance.snapshot import Snapshot
from advisor.policy.arithmetic import EarliestFinish
from advisor.policy.interface import Candidate, JobShape, Policy, Prediction, Scored, score
from advisor.policy.remembered import Remembered
from advisor.resources import folder
from advisor.settings import Processor, Settings

log = logging.getLogger(__name__)

# So many decisions over the budget, less a fifth for each one within, and it rests.
TOO_HOT, COOLING = 3.0, 0.8
# Seconds of rest: at first, and at most. So many decisions in time, and the next rest is a short one again.
FIRST_REST_S, LONGEST_REST_S, RELIABLE = 30.0, 600.0, 200
# Messages of the same kind are said once in so many seconds.
_QUIET_S = 300.0


class Network(Policy, Protocol):
    """What the learned policy has beside any policy's `predict`; it starts from the arithmetic's predictions."""

    def observe(self, snapshot: Snapshot) -> None:
        """Takes in a new snapshot, before the first decision on it."""
        ...

    def correct(self, asked: Sequence[tuple[JobShape, Scored]], snapshot: Snapshot, now: float) -> list[Scored]:
        """What the arithmetic told of each of these jobs, corrected, or with the reason why it is not."""
        ...

    def remembered(self) -> Remembered:
        """What it knows of submissions."""
        ...

    def recall(self, told: Remembered) -> None:
        """Knows from the next snapshot on what another one does."""
        ...


class Guarded:
    """`learned`, as the daemon runs it. Without a budget it is never too slow, and as pure as the network is."""

    name = "learned"

    def __init__(
        self,
        network: Network | None,
        arithmetic: Policy,
        refused: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.version = network.version if network is not None else ""
        self.refused = refused  # why there is no network
        self.budget_s: float | None = None
        self.fallbacks: dict[str, int] = {}  # kind → decisions
        self.resting = ""  # why it rests; empty: it decides
        self._network, self._arithmetic, self._clock = network, arithmetic, clock
        self._heat = 0.0
        self._until = 0.0
        self._rest_s = FIRST_REST_S
        self._in_time = 0
        self._said_at = -_QUIET_S

    def observe(self, snapshot: Snapshot) -> None:
        """What the network makes of a new snapshot is worked out once, not with the first decision on it."""
        if self._network is None:
            return
        try:
            self._network.observe(snapshot)
        except Exception as error:
            self._failed(error)

    def remembered(self) -> Remembered | None:
        """What the network knows of submissions; None: there is no network."""
        return None if self._network is None else self._network.remembered()

    def recall(self, told: Remembered) -> None:
        """Knows from the next snapshot on what another process has seen submitted."""
        if self._network is not None:
            self._network.recall(told)

    def predict(
        self, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot, now: float
    ) -> list[Prediction]:
        """One prediction for each candidate."""
        return self.score(shape, candidates, snapshot, now).explained()

    def score(self, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot, now: float) -> Scored:
        """The network's scores, or the arithmetic's with the reason."""
        began = self._clock()
        expected = self.expect(shape, candidates, snapshot, now)
        return self._corrected([(shape, expected)], snapshot, now, began)[0]

    def expect(self, shape: JobShape, candidates: tuple[Candidate, ...], snapshot: Snapshot, now: float) -> Scored:
        """The arithmetic's, which the network starts from."""
        return score(self._arithmetic, shape, candidates, snapshot, now)

    def correct(self, asked: Sequence[tuple[JobShape, Scored]], snapshot: Snapshot, now: float) -> list[Scored]:
        """The network's scores of several jobs, or the arithmetic's with the reason."""
        return self._corrected(asked, snapshot, now, self._clock())

    def _corrected(
        self, asked: Sequence[tuple[JobShape, Scored]], snapshot: Snapshot, now: float, began: float
    ) -> list[Scored]:
        network = self._network
        if network is None:
            return self._plainly(asked, "no model", self.refused)
        if self.resting:
            if began < self._until:
                return self._plainly(asked, "resting", self.resting)
            log.info("the learned policy is tried again")
            self.resting = ""
        try:
            found = network.correct(asked, snapshot, now)
        except Exception as error:  # a fault of the network must not cost a decision
            self._failed(error)
            return self._plainly(asked, "failed", self.resting)
        took_s = (self._clock() - began) / max(len(asked), 1)
        for scored in found:
            self._judge(took_s)
            if scored.by is not None:
                self._count(scored.kind)
        return found

    def _plainly(self, asked: Sequence[tuple[JobShape, Scored]], kind: str, why: str) -> list[Scored]:
        by = (self._arithmetic.name, self._arithmetic.version)
        for _ in asked:
            self._count(kind)
        return [msgspec.structs.replace(scored, by=by, fell_back=why, kind=kind) for _, scored in asked]

    def _count(self, kind: str) -> None:
        self.fallbacks[kind] = self.fallbacks.get(kind, 0) + 1

    def _judge(self, took_s: float) -> None:
        if self.budget_s is None:
            return
        if took_s <= self.budget_s:
            self._heat *= COOLING
            self._in_time += 1
            if self._in_time >= RELIABLE:
                self._rest_s = FIRST_REST_S
            return
        self._in_time = 0
        self._heat += 1.0
        if self._heat >= TOO_HOT:
            self._rest(
                f"it took {took_s * 1e3:.1f} ms, more than policy.budget_ms ({self.budget_s * 1e3:g}), several times"
            )

    def _failed(self, error: Exception) -> None:
        self._rest(f"it failed ({type(error).__name__}: {error})", error)

    def _rest(self, why: str, error: Exception | None = None) -> None:
        now = self._clock()
        self.resting, self._until, self._heat, self._in_time = why, now + self._rest_s, 0.0, 0
        if now - self._said_at >= _QUIET_S:
            self._said_at = now
            log.warning("the arithmetic decides for %.0f s: the learned policy: %s", self._rest_s, why, exc_info=error)
        self._rest_s = min(2 * self._rest_s, LONGEST_REST_S)


def learned(settings: Settings, model: Path | None = None) -> Guarded:
    """The learned policy of a model's folder, or of its weights alone; never raises. Default: the shipped one."""
    figures = load(settings.processors)
    arithmetic = EarliestFinish(figures)
    path = model or (Path(settings.policy.model) if settings.policy.model else folder("models") / "default")
    try:
        network = _read(path, figures)
    except ImportError as error:
        return Guarded(None, arithmetic, f"{error}: pip install 'slurm-advisor[learn]'")
    except _refusals() as error:
        return Guarded(None, arithmetic, str(error))
    return Guarded(network, arithmetic)


def _read(path: Path, figures: Mapping[str, Processor]) -> Network:
    from advisor.policy.learned import LearnedPolicy, ModelError
    from advisor.policy.learned.files import read_weights

    if path.is_dir() or not path.suffix:
        return cast(Network, LearnedPolicy.from_folder(path, figures))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    return cast(Network, LearnedPolicy(read_weights(content, str(path)), figures, path.parent.name))


def _refusals() -> type[Exception]:
    from advisor.policy.learned import ModelError

    return ModelError
