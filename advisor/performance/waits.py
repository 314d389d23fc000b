"""When a job would start: read off the timelines, and corrected by what was decided since they were made.

Looking up a wait costs a bisection and a look at a few holes. The `Ledger` books every decision on the
timelines it will load, so that a burst of submissions between two polls does not all go to one place.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import inf

import msgspec

from advisor.performance.demand import Need
from advisor.performance.snapshot import Snapshot, Timeline
from advisor.performance.track import ALWAYS, Track, earliest, windows

# A job submitted this long before Slurm was asked must have been in its answer.
SETTLED_S = 10.0
# How many bookings wait for the next poll; far more than slurmctld takes submissions in that time.
MAX_BOOKINGS = 50_000


def expected_wait(
    snapshot: Snapshot, pool: int, priority_tier: int, need: Need, run_s: float, now: float
) -> float | None:
    """Seconds until `need` is free in `pool` for a job of this tier; None where the pool is too small."""
    tier = snapshot.tier_index(priority_tier)
    cpu = snapshot.cpu_timelines[pool][tier]
    tail = _tail(cpu, need.cpus)
    gpu = snapshot.gpu_timelines[pool][tier] if need.gpus else None
    gpu_tail = _tail(gpu, need.gpus) if gpu is not None else now
    start = max(tail, gpu_tail)
    if start == inf:
        return None
    # Only a hole of whichever comes free last can let the job start sooner.
    other: Timeline | None
    if gpu is not None and gpu_tail > tail:
        last, units, other, other_units, other_tail = gpu, need.gpus, cpu, need.cpus, tail
    else:
        last, units, other, other_units, other_tail = cpu, need.cpus, gpu, need.gpus, gpu_tail
    if start > now and last.longest >= run_s:
        if other is None or other_tail <= now:
            start = _first_hole(last, units, run_s, now, start)
        elif len(found := windows(last.holes, units, run_s, start)) > 1:
            start = earliest(found, windows(other.holes, other_units, run_s, other_tail), run_s, now)
    return max(start - now, 0.0)


def _first_hole(line: Timeline, units: int, run_s: float, now: float, tail: float) -> float:
    """When `units` are first free for `run_s`, where nothing else has to be: mostly so, and quick to find."""
    for start, end, count in line.holes:
        if start >= tail:
            break
        begin = max(start, now)
        if count >= units and end - start >= run_s and begin + run_s <= end:
            return begin
    return tail


def spanning_wait(snapshot: Snapshot, parts: Sequence[tuple[int, int, Need]], now: float) -> float | None:
    """Seconds until a job larger than any one pool finds its nodes in several: (pool, priority tier, need) each.

    Slurm keeps a job's nodes together in time, not in place, so whole nodes are counted as they come free for good.
    """
    wanted = max(need.nodes for _, _, need in parts)
    lines: list[list[tuple[Timeline, int]]] = []
    for pool, priority_tier, need in parts:
        tier = snapshot.tier_index(priority_tier)
        lines.append([(snapshot.cpu_timelines[pool][tier], -(-need.cpus // need.nodes))])
        if need.gpus:
            lines[-1].append((snapshot.gpu_timelines[pool][tier], -(-need.gpus // need.nodes)))
    times = sorted({time for resources in lines for line, _ in resources for time in line.times})
    first = bisect_left(times, wanted, key=lambda time: sum(_whole_nodes(resources, time) for resources in lines))
    return max(times[first] - now, 0.0) if first < len(times) else None


def _whole_nodes(resources: list[tuple[Timeline, int]], time: float) -> int:
    """How many nodes of a pool are free for good at `time`, going by each of its resources' units per node."""
    free = []
    for line, per_node in resources:
        place = bisect_right(line.times, time)
        free.append(line.cumulative[place - 1] // per_node if place else 0)
    return min(free)


def _tail(timeline: Timeline, units: int) -> float:
    place = bisect_left(timeline.cumulative, units)
    return timeline.times[place] if place < len(timeline.times) else inf


class Booking(msgspec.Struct, frozen=True):
    """One decision that Slurm's next answer is not yet known to contain."""

    token: str
    pool: int
    priority_tier: int
    need: Need
    run_s: float
    tasks: int
    booked_at: float
    not_before: float = 0.0  # it waits for other jobs until about then


class _Applied(msgspec.Struct, frozen=True):
    """What a booking makes of its pool's timelines."""

    booking: Booking
    cpu_before: tuple[Timeline, ...]
    gpu_before: tuple[Timeline, ...]
    cpu_after: tuple[Timeline, ...]
    gpu_after: tuple[Timeline, ...]


class Ledger:
    """Bookings on top of a snapshot. Owned by one thread: the daemon's event loop, or a simulation.

    `view` is a snapshot like any other, whose timelines contain the bookings; only booked pools are copied.
    """

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self._base = snapshot
        self._view = snapshot
        self._bookings: list[Booking] = []
        self._foreseen: dict[tuple[str, int], _Applied] = {}  # token, pool → what was worked out on the last branch
        self._foresees = False
        self._tiers: dict[int, tuple[int, ...]] = {}  # pool → those of its timelines that somebody may look at

    def __len__(self) -> int:
        return len(self._bookings)

    @property
    def view(self) -> Snapshot | None:
        """The snapshot with the bookings on it."""
        return self._view

    def over(self, snapshot: Snapshot) -> Snapshot:
        """The view on `snapshot`, taking it as the new base where it is another one than before."""
        if snapshot is not self._base or self._view is None:
            self.rebase(snapshot)
        return self._view if self._view is not None else snapshot

    def rebase(self, snapshot: Snapshot, seen_tokens: frozenset[str] | None = None) -> None:
        """Takes a new snapshot: bookings that it contains are dropped, the rest are put on it again."""
        seen = snapshot.tokens if seen_tokens is None else seen_tokens
        kept = [booking for booking in self._bookings if not _settled(booking, snapshot, seen)]
        if self._base is not None and _pools_differ(self._base, snapshot):
            kept = []  # indices mean other nodes now; the next poll knows these jobs
        self._base, self._tiers = snapshot, {}
        self._view = msgspec.structs.replace(
            snapshot, gpu_timelines=dict(snapshot.gpu_timelines), cpu_timelines=dict(snapshot.cpu_timelines)
        )
        self._bookings = kept
        for booking in kept:
            self._apply(booking)

    def book(
        self,
        token: str,
        pool: int,
        need: Need,
        run_s: float,
        now: float,
        *,
        priority_tier: int = 1,
        tasks: int = 1,
        not_before: float = 0.0,
    ) -> None:
        """Books a decision on the pool where its job is expected to run."""
        self.carry(Booking(token, pool, priority_tier, need, run_s, tasks, now, not_before))

    def branch(self, snapshot: Snapshot) -> Ledger:
        """What may be booked next is booked there, and not here. If it is booked here after all, that costs nothing."""
        branch = Ledger()
        branch._base, view = snapshot, self.over(snapshot)
        branch._view = msgspec.structs.replace(
            view, gpu_timelines=dict(view.gpu_timelines), cpu_timelines=dict(view.cpu_timelines)
        )
        branch._foreseen = self._foreseen = {}
        branch._foresees = True
        return branch

    def carry(self, booking: Booking) -> None:
        """Takes over a booking, of another ledger or a new one."""
        if self._view is None or len(self._bookings) >= MAX_BOOKINGS:
            return
        if self._view is self._base:
            self.rebase(self._view)
        self._bookings.append(booking)
        self._apply(booking)

    def unknown_to(self, snapshot: Snapshot, first: int = 0) -> list[Booking]:
        """From the booking number `first` on, those that `snapshot` does not show yet, to be carried over to it.

        None where its pools are other ones: an index means other nodes then, and the next poll knows these jobs.
        """
        if self._base is not None and _pools_differ(self._base, snapshot):
            return []
        return [booking for booking in self._bookings[first:] if not _settled(booking, snapshot, snapshot.tokens)]

    def _tiers_of(self, view: Snapshot, pool: int) -> tuple[int, ...]:
        found = self._tiers.get(pool)
        if found is None:
            listed = [view.partitions.get(name) for name in view.pools[pool].partitions]
            at = {view.tier_index(partition.priority_tier) for partition in listed if partition is not None}
            found = self._tiers[pool] = tuple(sorted(at))
        return found

    def _apply(self, booking: Booking) -> None:
        view = self._view
        if view is None:
            return
        first = view.tier_index(booking.priority_tier)
        pool, need = booking.pool, booking.need
        gpu_before, cpu_before = view.gpu_timelines.get(pool, ()), view.cpu_timelines[pool]
        if not self._foresees and self._foreseen:
            known = self._foreseen.pop((booking.token, pool), None)
            if (
                known is not None
                and known.cpu_before is cpu_before
                and (known.gpu_before is gpu_before or not need.gpus)
                and known.booking == booking
            ):
                view.cpu_timelines[pool] = known.cpu_after
                if need.gpus:
                    view.gpu_timelines[pool] = known.gpu_after
                return
        gpu_lines, cpu_lines = list(gpu_before), list(cpu_before)
        # Whoever comes later at the same or a lower tier finds this job ahead; nobody comes at a tier that none of the
        # pool's partitions has.
        for tier in self._tiers_of(view, pool):
            if tier < first:
                continue
            cpu = Track.thaw(cpu_lines[tier])
            gpu = Track.thaw(gpu_lines[tier]) if need.gpus else None
            place(gpu, cpu, need, booking.run_s, max(booking.booked_at, booking.not_before), booking.tasks)
            cpu_lines[tier] = cpu.freeze()
            if gpu is not None:
                gpu_lines[tier] = gpu.freeze()
        view.cpu_timelines[pool] = tuple(cpu_lines)
        if need.gpus:
            view.gpu_timelines[pool] = tuple(gpu_lines)
        if self._foresees:
            self._foreseen[booking.token, pool] = _Applied(
                booking, cpu_before, gpu_before, view.cpu_timelines[pool], view.gpu_timelines.get(pool, ())
            )


def start_on(gpu: Track | None, cpu: Track, need: Need, run_s: float, now: float) -> float:
    """When a job could start on these tracks; infinity where they are too small."""
    tail = cpu.tail(need.cpus)
    if not need.gpus:
        gpu = None
    gpu_tail = gpu.tail(need.gpus) if gpu is not None else now
    start = max(tail, gpu_tail)
    if start <= now:
        return now
    if start == inf or not (cpu.holes or (gpu is not None and gpu.holes)):
        return start
    return earliest(
        windows(cpu.holes, need.cpus, run_s, tail),
        windows(gpu.holes, need.gpus, run_s, gpu_tail) if gpu is not None else ALWAYS,
        run_s,
        now,
    )


# An array is placed in at most so many steps: tasks are grouped, and beyond the pool's size put in a row.
MAX_STEPS = 8


def place(gpu: Track | None, cpu: Track, need: Need, run_s: float, now: float, tasks: int = 1) -> float:
    """Puts a job, or the tasks of an array, on the tracks; when the last has ended (`now`: too small)."""
    if tasks > 1:
        room = max(min(cpu.capacity // need.cpus, gpu.capacity // need.gpus if gpu and need.gpus else tasks), 1)
        in_a_row = -(-tasks // (room * MAX_STEPS))
        # Groups of such a size that they fill the pool side by side.
        group = room // max(room // -(-tasks // (in_a_row * MAX_STEPS)), 1)
        run_s *= in_a_row
        tasks = -(-tasks // (in_a_row * group))
        need = need._replace(cpus=need.cpus * group, gpus=need.gpus * group)
    end = now
    for _ in range(tasks):
        start = start_on(gpu, cpu, need, run_s, now)
        if start == inf:
            break
        end = max(end, start + run_s)
        cpu.take(need.cpus, start, run_s)
        if gpu is not None:
            gpu.take(need.gpus, start, run_s)
    return end


def _settled(booking: Booking, snapshot: Snapshot, seen: frozenset[str]) -> bool:
    """Whether the snapshot has the booking's job in it."""
    return booking.token in seen or booking.booked_at <= snapshot.taken_at - SETTLED_S


def _pools_differ(old: Snapshot, new: Snapshot) -> bool:
    """Whether the pools' indices no longer stand for the same nodes; a new pool at the end changes none."""
    return len(old.pools) > len(new.pools) or any(
        a.partitions != b.partitions
        or a.gres_per_node != b.gres_per_node
        or a.cpus_per_node != b.cpus_per_node
        or a.memory_per_node != b.memory_per_node
        or a.features != b.features
        for a, b in zip(old.pools, new.pools, strict=False)
    )
