"""What of a decision stays the same from one submission to the next: the annotation, the shape, the candidates.

Users submit the same script again and again, and where a job of some shape may go changes only when nodes or
partitions do. `Plans` remembers both; waits and the choice are worked out anew for every submission. With or
without it a decision is the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from operator import attrgetter
from typing import Generic, TypeVar

import msgspec

from advisor.dfg.annotation import AnnotationError, find
from advisor.dfg.graph import Annotation
from advisor.performance.snapshot import Snapshot
from advisor.policy.candidates import Choice, find_candidates
from advisor.policy.eligibility import LeftAlone, what_is_open
from advisor.policy.shape import NOTHING_TOLD, ShapeError, array_tasks, read_shape
from advisor.protocol import SubmitRequest
from advisor.settings import Processor, Settings

# Scripts that are longer than this are read each time; so are the rare ones with thousands of kernels.
_MAX_TEXT = 16 * 1024
_MAX_READINGS, _MAX_PLANS = 512, 512

# What does not bear on where a job may go, or only through the annotation, the shape's app, its user and its tasks.
_NOT_PLACING = frozenset(
    {
        "v", "op", "kind", "row", "uid", "user", "name", "prefer", "licenses", "time_min", "dependency", "begin_time",
        "batch", "script_head", "environment", "comment", "extra", "partitions", "array",
    }
)  # fmt: skip
_placing = attrgetter(*(name for name in SubmitRequest.__struct_fields__ if name not in _NOT_PLACING))

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Reading(msgspec.Struct, frozen=True):
    """The annotation of a submission, or what is wrong with it."""

    annotation: Annotation | None
    error: str | None
    placing: tuple[Hashable, ...] = ()  # what of it bears on where the job may go


NOTHING_READ = Reading(None, None)


class Plan(msgspec.Struct, frozen=True):
    """Where a job may go; `left_alone`: nothing about it may change, and why."""

    left_alone: str = ""
    choice: Choice | None = None  # None: it is left alone, or the cluster is not known
    partitions: object = None  # the list this was worked out from: while it is held, no other has its id


class _Recent(Generic[_Key, _Value]):
    """So many of the values that were asked for last."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[_Key, _Value] = OrderedDict()

    def get(self, key: _Key) -> _Value | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: _Key, value: _Value) -> None:
        self._values[key] = value
        if len(self._values) > self._size:
            self._values.popitem(last=False)

    def clear(self) -> None:
        self._values.clear()


def read(request: SubmitRequest) -> Reading:
    """The annotation, wherever it stands."""
    try:
        found = find(request.script_head, request.environment, request.extra, request.comment)
    except AnnotationError as error:
        return Reading(None, str(error))
    if found is None:
        return NOTHING_READ
    kernels = tuple((kernel.on, kernel.memory) for kernel in found.kernels)
    return Reading(found, None, (found.off, found.share, found.flexible, kernels))


def plan(
    request: SubmitRequest,
    reading: Reading,
    snapshot: Snapshot | None,
    settings: Settings,
    processors: Mapping[str, Processor],
) -> Plan:
    """What the job needs, what of it may change and, where there is a snapshot, where it may go."""
    try:
        shape = read_shape(request, reading.annotation)
    except ShapeError as error:
        return Plan(str(error))
    openness = what_is_open(request, shape, reading.annotation, settings.exclude)
    if isinstance(openness, LeftAlone):
        return Plan(openness.why)
    if snapshot is None:
        return Plan()
    jobs_per_gpu = settings.sharing.jobs_per_gpu if "share" in settings.levers else 1
    choice = find_candidates(request, shape, openness, snapshot, settings.exclude.partitions, processors, jobs_per_gpu)
    return Plan(choice=choice, partitions=request.partitions)


class Plans:
    """Readings and plans of recent submissions, for one decider."""

    def __init__(self) -> None:
        self._readings: _Recent[tuple[Hashable, ...], Reading] = _Recent(_MAX_READINGS)
        self._plans: _Recent[tuple[Hashable, ...], Plan] = _Recent(_MAX_PLANS)
        self._snapshot: Snapshot | None = None
        self._settings: Settings | None = None
        self._processors: Mapping[str, Processor] | None = None

    def read(self, request: SubmitRequest) -> Reading:
        """As `read`."""
        head, extra, comment, environment = request.script_head, request.extra, request.comment, request.environment
        if len(head or "") + len(extra or "") + len(comment or "") > _MAX_TEXT:
            return read(request)
        key = (head, extra, comment, tuple(sorted(environment.items())) if environment else None)
        found = self._readings.get(key)
        if found is None:
            found = read(request)
            if sum(map(len, environment.values())) <= _MAX_TEXT:
                self._readings.put(key, found)
        return found

    def plan(
        self,
        request: SubmitRequest,
        reading: Reading,
        snapshot: Snapshot,
        settings: Settings,
        processors: Mapping[str, Processor],
    ) -> Plan:
        """As `plan`, for a job of which the cluster is known."""
        if (
            snapshot is not self._snapshot or settings is not self._settings or processors is not self._processors
        ) and not self._still_holds(snapshot, settings, processors):
            self._plans.clear()
        # Lists of partitions that are spelled alike are one object where they are decoded.
        who = (request.user, request.uid) if settings.exclude.users else None
        key = (id(request.partitions), who, reading.placing, _placing(request))
        found = self._plans.get(key)
        if found is None:
            found = plan(request, reading, snapshot, settings, processors)
            if found.choice is not None:
                self._plans.put(key, found)
            return found
        return _of_this_job(found, request, reading)

    def _still_holds(self, snapshot: Snapshot, settings: Settings, processors: Mapping[str, Processor]) -> bool:
        """Whether the plans are good for these, too: the queue may have moved, nodes and partitions may not."""
        before = self._snapshot
        same = (
            settings is self._settings
            and processors is self._processors
            and before is not None
            and (before.partitions is snapshot.partitions or before.partitions == snapshot.partitions)
            and (before.pools is snapshot.pools or before.pools == snapshot.pools)
            and before.pools_of == snapshot.pools_of
            and before.gpu_types_of == snapshot.gpu_types_of
        )
        self._snapshot, self._settings, self._processors = snapshot, settings, processors
        return same


def _of_this_job(found: Plan, request: SubmitRequest, reading: Reading) -> Plan:
    """The plan of a like job, as that of this one."""
    choice = found.choice
    if choice is None:
        return found
    shape, note = choice.shape, reading.annotation or NOTHING_TOLD
    app = note.app or request.name or "unnamed"
    user = request.user or str(request.uid)
    tasks, at_once = array_tasks(request.array)
    if (
        shape.annotation is note
        and shape.app == app
        and shape.user == user
        and shape.tasks == tasks
        and shape.tasks_at_once == at_once
    ):
        return found
    shape = msgspec.structs.replace(shape, app=app, user=user, annotation=note, tasks=tasks, tasks_at_once=at_once)
    return msgspec.structs.replace(found, choice=msgspec.structs.replace(choice, shape=shape))
