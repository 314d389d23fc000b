"""What a simulation runs: jobs with their submission, their needs and how long they really take.

Every reader (SWF, Gavel, JSON lines, sacct, synthetic) makes these. Times are seconds from the start
of the trace; a processor type that is missing in `run_time` cannot run the job, and `any` stands for
every type that has no figure of its own.
"""

from __future__ import annotations

import msgspec

ANY = "any"


class SimJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job, as submitted, with what only the simulator knows: how long it runs where."""

    id: str
    submit: float
    run_time: dict[str, float]  # processor type → seconds
    app: str = ""
    user: str = ""
    account: str = ""
    nodes: int = 1
    cpus: int = 1  # in all
    memory_mb: int = 0  # in all
    gpus: int = 0  # in all
    time_limit: float | None = None  # seconds; None: no limit is known
    partitions: tuple[str, ...] = ()  # as submitted; empty: none was named
    gpu_type: str | None = None  # as submitted
    priority: float = 0.0  # higher goes first
    share: bool = False
    exclusive: bool = False
    requeue: bool = False  # may be taken off its nodes when a much better place is free (`#ADVISOR requeue: true`)
    depends: tuple[str, ...] = ()  # starts after these have ended, however they ended
    array: str | None = None  # tasks of one array carry the same word
    array_limit: int = 0  # most tasks of the array that run at once; 0: no limit
    steps: float = 0.0  # Gavel traces: training steps in all
    weight: float = 1.0
    script: str = ""  # leading comment block of its script, with any #ADVISOR lines
    dfg: dict[str, object] = {}

    def seconds_on(self, processor: str) -> float | None:
        """How long it runs on a processor type; None: it cannot."""
        found = self.run_time.get(processor)
        return self.run_time.get(ANY) if found is None else found


class Workload(msgspec.Struct, frozen=True):
    """Jobs in the order of their submission, and where they came from."""

    name: str
    jobs: tuple[SimJob, ...]
    processors: int | None = None  # SWF: how many the machine had


class TraceError(Exception):
    """A trace cannot be used; the text names the file, the line and the field."""

    def __init__(self, file: str, line: int | None, field: str, problem: str) -> None:
        where = f"{file}:{line}" if line is not None else file
        super().__init__(f"{where}: {field}: {problem}")
        self.file, self.line, self.field, self.problem = file, line, field, problem


def checked(name: str, jobs: list[tuple[int, SimJob]], file: str) -> Workload:
    """A workload from (line, job) pairs: ids unique, dependencies known and without a cycle, sorted by submission."""
    lines: dict[str, int] = {}
    for line, job in jobs:
        if job.id in lines:
            raise TraceError(file, line, "id", f"{job.id!r} is already the id of the job on line {lines[job.id]}")
        lines[job.id] = line
        _check(job, file, line)
    for line, job in jobs:
        for other in job.depends:
            if other not in lines:
                raise TraceError(file, line, "depends", f"there is no job {other!r} in this trace")
    _refuse_cycles(jobs, file)
    return Workload(name, tuple(job for _, job in sorted(jobs, key=lambda pair: pair[1].submit)))


def _check(job: SimJob, file: str, line: int) -> None:
    if not (0 <= job.submit < float("inf")):
        raise TraceError(file, line, "submit", f"{job.submit:g} is not a time of 0 or more")
    if not job.run_time:
        raise TraceError(file, line, "run_time", "no processor type can run this job")
    for kind, seconds in job.run_time.items():
        if not (0 <= seconds < float("inf")):
            raise TraceError(file, line, f"run_time.{kind}", f"{seconds:g} is not a time of 0 or more")
    for field, value, least in (
        ("nodes", job.nodes, 1),
        ("cpus", job.cpus, 1),
        ("gpus", job.gpus, 0),
        ("memory_mb", job.memory_mb, 0),
        ("array_limit", job.array_limit, 0),
    ):
        if value < least:
            raise TraceError(file, line, field, f"{value} is below {least}")
    if job.time_limit is not None and not job.time_limit > 0:
        raise TraceError(file, line, "time_limit", f"{job.time_limit:g} is not above 0")


def _refuse_cycles(jobs: list[tuple[int, SimJob]], file: str) -> None:
    """Kahn's algorithm; what is left over lies on a cycle or behind one."""
    waits = {job.id: len(set(job.depends)) for _, job in jobs}
    behind: dict[str, list[str]] = {}
    for _, job in jobs:
        for other in set(job.depends):
            behind.setdefault(other, []).append(job.id)
    ready = [name for name, count in waits.items() if count == 0]
    while ready:
        for follower in behind.get(ready.pop(), ()):
            waits[follower] -= 1
            if waits[follower] == 0:
                ready.append(follower)
    for line, job in jobs:
        if waits[job.id] and any(waits[other] for other in job.depends):
            raise TraceError(file, line, "depends", f"job {job.id!r} waits, through others, for itself")
