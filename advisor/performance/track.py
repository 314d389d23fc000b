"""A pool's GPUs or CPUs over time while jobs are being placed on them: the mutable twin of `Timeline`.

Units that come free at the same time are one chunk, so placing a job costs a few list operations however
large the pool is. The queue is scheduled on tracks in the background; bookings thaw a timeline, place, freeze.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from math import inf

from advisor.performance.snapshot import Timeline

Hole = tuple[float, float, int]
Window = tuple[float, float]

# While the queue is scheduled, and in a snapshot.
MAX_CHUNKS, FROZEN_CHUNKS = 1024, 64
MAX_HOLES, FROZEN_HOLES = 32, 16


# Windows of a resource that the job does not need.
ALWAYS: tuple[Window, ...] = ((0.0, inf),)


class Track:
    """Free times of a number of like units, and the holes that placed jobs left behind."""

    __slots__ = ("capacity", "chunks", "holes")

    def __init__(self, capacity: int, now: float) -> None:
        self.capacity = capacity
        self.chunks: list[tuple[float, int]] = [(now, capacity)] if capacity > 0 else []
        self.holes: list[Hole] = []

    @classmethod
    def occupied(cls, capacity: int, ends: Iterable[tuple[float, int]], now: float) -> Track:
        """A track on which running jobs hold units until their expected ends.

        Where more is in use than there is (nodes shared by force, nodes that have since been drained), the
        earliest ends free nothing: they only bring the use down to what there is.
        """
        track = cls(0, now)
        track.capacity = capacity
        releases = sorted((end, units) for end, units in ends if units > 0)
        in_use = sum(units for _, units in releases)
        surplus = in_use - capacity
        chunks = [] if surplus >= 0 else [(now, -surplus)]
        for end, units in releases:
            if surplus > 0:
                dropped = min(units, surplus)
                surplus -= dropped
                units -= dropped
            if units:
                chunks.append((end, units))
        track.chunks = _merged(chunks)
        track._keep_small()
        return track

    @classmethod
    def thaw(cls, timeline: Timeline) -> Track:
        """The track that a timeline was frozen from."""
        track = cls(0, 0.0)
        track.capacity = timeline.cumulative[-1] if timeline.cumulative else 0
        track.chunks = list(zip(timeline.times, timeline.counts, strict=True))
        track.holes = list(timeline.holes)
        return track

    def freeze(self, limit: int = FROZEN_CHUNKS) -> Timeline:
        """An immutable copy, no longer than `limit`: the near future exact, later chunks merged to the later time."""
        chunks = self.chunks
        if len(chunks) > limit:
            exact = limit // 2
            step = -(-(len(chunks) - exact) // (limit - exact))
            late = chunks[exact:]
            chunks = chunks[:exact] + [
                (group[-1][0], sum(units for _, units in group))
                for group in (late[i : i + step] for i in range(0, len(late), step))
            ]
        holes = self.holes if len(self.holes) <= FROZEN_HOLES else _largest(self.holes, FROZEN_HOLES)
        times, counts = zip(*chunks, strict=True) if chunks else ((), ())
        return Timeline(times, counts, tuple(holes))

    def tail(self, units: int) -> float:
        """When `units` are free for good; infinity where there are not so many."""
        found = 0
        for time, count in self.chunks:
            found += count
            if found >= units:
                return time
        return inf

    def take(self, units: int, start: float, run_s: float) -> None:
        """Occupies `units` from `start` for `run_s`: in the tightest hole, else of those then free for good."""
        if units <= 0:
            return
        end = start + run_s
        best: Hole | None = None
        for hole in self.holes:
            if (
                hole[0] <= start
                and end <= hole[1]
                and hole[2] >= units
                and (best is None or hole[1] - hole[0] < best[1] - best[0])
            ):
                best = hole
        if best is not None:
            self._carve(best, units, start, end)
            return
        chunks = self.chunks
        # The units that came free last before `start`: what is free earlier stays whole for others.
        place = stop = bisect_right(chunks, (start, self.capacity + 1))
        left = units
        rest: tuple[float, int] | None = None
        while left > 0:
            if place == 0:
                raise ValueError(f"{units} units are not free at {start}")
            place -= 1
            time, count = chunks[place]
            used = min(count, left)
            left -= used
            if used < count:
                rest = (time, count - used)
            if time < start:
                self._add_hole((time, start, used))
        chunks[place:stop] = [] if rest is None else [rest]
        place = bisect_left(chunks, (end, 0))
        if place < len(chunks) and chunks[place][0] == end:
            chunks[place] = (end, chunks[place][1] + units)
        else:
            chunks.insert(place, (end, units))
        if len(chunks) > MAX_CHUNKS * 2:
            self._keep_small()

    def _carve(self, hole: Hole, units: int, start: float, end: float) -> None:
        self.holes.remove(hole)
        if hole[2] > units:
            self._add_hole((hole[0], hole[1], hole[2] - units))
        if hole[0] < start:
            self._add_hole((hole[0], start, units))
        if end < hole[1]:
            self._add_hole((end, hole[1], units))

    def _add_hole(self, hole: Hole) -> None:
        insort(self.holes, hole)
        if len(self.holes) > MAX_HOLES * 2:
            self.holes = _largest(self.holes, MAX_HOLES)

    def _keep_small(self) -> None:
        if len(self.chunks) <= MAX_CHUNKS:
            return
        chunks = self.chunks
        exact = MAX_CHUNKS // 4
        late = chunks[exact:]
        # Neighbours join at the later of their times, which errs on the side of a longer wait.
        self.chunks = chunks[:exact] + [
            (late[min(i + 1, len(late) - 1)][0], sum(units for _, units in late[i : i + 2]))
            for i in range(0, len(late), 2)
        ]
        if len(self.chunks) > MAX_CHUNKS:
            self._keep_small()


def windows(holes: Sequence[Hole], units: int, run_s: float, tail: float) -> list[Window]:
    """When `units` are free for `run_s` or longer: in holes before `tail`, and from `tail` on for good.

    A window inside another one is left out, so that both starts and ends ascend.
    """
    found: list[Window] = []
    reach = 0.0
    for start, end, count in holes:
        if start >= tail:
            break
        if count >= units and end > reach and end - start >= run_s:
            found.append((start, end))
            reach = end
    found.append((tail, inf))
    return found


def earliest(first: Sequence[Window], second: Sequence[Window], run_s: float, now: float) -> float:
    """The first time from which two resources are both free for `run_s`; their windows as from `windows`."""
    i = j = 0
    while True:
        begin = max(first[i][0], second[j][0], now)
        first_end, second_end = first[i][1], second[j][1]
        if begin + run_s <= first_end and begin + run_s <= second_end:
            return begin
        # The one that ends sooner meets no later window for longer than it met this one.
        if first_end <= second_end:
            i += 1
        else:
            j += 1


def _merged(chunks: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Chunks that come free at the same time as one; `chunks` are in order of time."""
    merged: list[tuple[float, int]] = []
    for time, units in chunks:
        if merged and merged[-1][0] == time:
            merged[-1] = (time, merged[-1][1] + units)
        else:
            merged.append((time, units))
    return merged


def _largest(holes: list[Hole], count: int) -> list[Hole]:
    kept = sorted(holes, key=lambda hole: (hole[0] - hole[1]) * hole[2])[:count]
    return sorted(kept)
