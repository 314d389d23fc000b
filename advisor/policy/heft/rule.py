"""HEFT in the daemon: earliest finish, with the run time of an annotated job by the schedule of its kernels.

Where the job has run before, its history counts more than any graph; jobs that wait for others are placed for the time
at which those end (`advisor.policy.workflow`), as with every policy.
"""

from __future__ import annotations

from collections.abc import Mapping

from advisor.performance.snapshot import Snapshot
from advisor.policy.heft.kernels import makespan
from advisor.policy.interface import JobShape, Prediction
from advisor.settings import Processor

_KEPT = 512


class ByKernels:
    """Scores for `advisor.policy.rules.Rescored`."""

    def __init__(self, processors: Mapping[str, Processor]) -> None:
        self._processors = processors
        # The annotation is kept with the figure, so that no other can come to have its id meanwhile.
        self._known: dict[tuple[int, str, int, int], tuple[object, float | None]] = {}

    def __call__(self, predictions: list[Prediction], shape: JobShape, snapshot: Snapshot, now: float) -> list[float]:
        """Wait + run time; the kernels' schedule where the annotation is all there is to go by."""
        found = []
        for prediction in predictions:
            run_s = prediction.run_s
            if prediction.run_source == "annotation":
                told = self._told(shape, prediction.processor)
                run_s = run_s if told is None else told
            found.append(prediction.wait_s + run_s * prediction.slowdown)
        return found

    def _told(self, shape: JobShape, processor: str) -> float | None:
        key = (id(shape.annotation), processor, shape.gpus, shape.cpus)
        if key not in self._known:
            if len(self._known) >= _KEPT:
                self._known.clear()
            seconds = makespan(shape.annotation, processor, self._processors, shape.gpus, shape.cpus)
            self._known[key] = (shape.annotation, seconds)
        return self._known[key][1]
