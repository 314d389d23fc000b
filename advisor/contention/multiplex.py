"""What multiplexed counters would have counted: each tick's missing events inferred from the ticks and events seen.

perf scales an event by time enabled / time running, as if the ticks in which it had no counter were like
those in which it had one. They are not: programs have phases. Here every event's log rate is a Gaussian process
over the state of the node (the counters that are always on, and factors shared by all events) and over time: an event
seen in one visit of a phase tells of the other visits, and events that move together correct
each other. The hyperparameters come from the marginal likelihood of what was seen, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_JITTER = 1e-6
_DENSE = 10  # ticks between two readings of a group; further apart they say nothing of how long a wandering lasts


@dataclass(frozen=True)
class Settings:
    """How much effort to spend."""

    factors: int = 10  # shared factors of the second and later passes
    passes: int = 3  # the first sees only the counters that are always on
    steps: int = 30  # of Adam on the marginal likelihood, in each pass
    own_steps: int = 10  # more steps for each group of events alone, from where all together ended
    time: bool = True  # whether neighbouring ticks tell of each other
    state: bool = True  # whether the always-on counters tell of the others
    reading_error: float = 0.01  # relative, of one reading: skid and interrupts, a property of the PMU


@dataclass(frozen=True)
class Reconstruction:
    """Counts in each window, and in all, with standard deviations; rows are windows, columns events."""

    mean: Floats
    sd: Floats
    total_mean: Floats
    total_sd: Floats


@dataclass(frozen=True)
class _Group:
    """Events that were always seen together, and the ticks in which they were."""

    ticks: torch.Tensor
    columns: list[int]
    values: torch.Tensor  # standardised log counts, ticks × columns
    x: torch.Tensor  # the node's state at every tick, as seen without this group's own events

    @property
    def dense(self) -> bool:
        """Whether its readings are near enough to each other to show what goes on within a phase."""
        return len(self.ticks) > 1 and bool((self.ticks[1:] - self.ticks[:-1]).median() <= _DENSE)


class _Kernel:
    """Covariance of log rates between ticks: linear and smooth in the state, plus memories of time."""

    def __init__(self, ticks: int, width: int, settings: Settings) -> None:
        self.t = torch.arange(ticks, dtype=torch.float64)
        self.width = width
        self.settings = settings
        start = [np.log(2.0)] * self.width + list(np.log([0.3, 0.5, 0.2, 30.0, 0.03, 0.2, 100.0, 0.05, 5.0]))
        self.parameters = torch.tensor(start, dtype=torch.float64, requires_grad=True)

    def _split(self, dense: bool) -> tuple[torch.Tensor, torch.Tensor]:
        p = torch.exp(self.parameters)
        if not dense:
            p = torch.cat([p[:-1], p[-1:].detach()])
        weights = p[self.width :].clone()
        if not self.settings.time:
            weights = weights * torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
        if not self.settings.state:
            weights = weights * torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
        return p[: self.width], weights

    def __call__(self, state: torch.Tensor, one: torch.Tensor, other: torch.Tensor, dense: bool = True) -> torch.Tensor:
        """Between two sets of ticks. Readings that are not `dense` do not move the length of the quick memory."""
        lengths, (linear, smooth, brief, tau, _, recent, recent_tau, quick, quick_tau) = self._split(dense)
        x, y = state[one] / lengths, state[other] / lengths
        inner = x @ y.T
        squared = ((x * x).sum(1)[:, None] + (y * y).sum(1)[None, :] - 2 * inner).clamp(min=0)
        apart = (self.t[one][:, None] - self.t[other][None, :]).abs()
        near = torch.exp(-0.5 * squared) * (smooth + recent * torch.exp(-apart / recent_tau))
        # Without the quick memory, wandering within a phase would pass for white noise and the sums look too sure.
        memory = brief * torch.exp(-apart / tau) + quick * torch.exp(-apart / quick_tau)
        covariance: torch.Tensor = linear * inner / max(self.width, 1) + near + memory
        return covariance

    def noise(self) -> torch.Tensor:
        return torch.exp(self.parameters[self.width + 4])

    def factor(self, state: torch.Tensor, ticks: torch.Tensor, dense: bool = True) -> torch.Tensor:
        """Cholesky factor of the covariance of what was seen at these ticks."""
        eye = torch.eye(len(ticks), dtype=torch.float64)
        covariance = self(state, ticks, ticks, dense) + (self.noise() + _JITTER) * eye
        chol: torch.Tensor = torch.linalg.cholesky(covariance)
        return chol

    def adapted(self, group: _Group, spread: Floats, white: float) -> _Kernel:
        """A copy that has moved a few steps towards one group: units differ in how much is their own.

        Readings far apart cannot tell noise of each tick from wandering that lasts a few: both are forgotten by the
        next. In a sum over a window noise cancels and wandering does not, so noise is only granted as much (`white`,
        the variance of logarithms) as the counters show that are read at every tick; the rest wanders.
        """
        own = _Kernel(len(self.t), self.width, self.settings)
        with torch.no_grad():
            own.parameters.copy_(self.parameters)
        own.fit([group], self.settings.own_steps)
        if not group.dense and self.settings.time:
            with torch.no_grad():
                noise, quick = torch.exp(own.parameters[self.width + 4]), torch.exp(own.parameters[self.width + 7])
                scale = own.scale(group, torch.cholesky_inverse(own.factor(group.x, group.ticks)))
                granted = min(float(noise), float(np.median(white / (scale * spread[group.columns] ** 2))))
                own.parameters[self.width + 4] = np.log(max(granted, 1e-9))
                own.parameters[self.width + 7] = torch.log(quick + noise - granted)
        return own

    def scale(self, group: _Group, inverse: torch.Tensor) -> Floats:
        """Scale of each event from its leave-one-out residuals, which unlike the fit's own do not flatter it."""
        weights = inverse @ group.values
        return np.asarray((weights**2 / inverse.diagonal()[:, None]).mean(0).numpy() + 1e-12)

    def fit(self, groups: list[_Group], steps: int) -> None:
        """Maximises the marginal likelihood, each event's own scale profiled out; a third of the groups a step."""
        adam = torch.optim.Adam([self.parameters], lr=0.1)
        every = max(1, len(groups) // 3)
        for step in range(steps):
            adam.zero_grad()
            loss = torch.zeros((), dtype=torch.float64)
            for index, group in enumerate(groups):
                if (index + step) % every:
                    continue
                ticks, values = group.ticks[:300], group.values[:300]
                chol = self.factor(group.x, ticks, group.dense)
                white = torch.linalg.solve_triangular(chol, values, upper=False)
                scale = (white**2).mean(0) + 1e-9
                loss = loss + values.shape[1] * torch.log(chol.diagonal()).sum()
                loss = loss + 0.5 * len(ticks) * torch.log(scale).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()


def reconstruct(seen: Floats, window: int, settings: Settings | None = None) -> Reconstruction:
    """Counts of every event in windows of so many ticks, from ticks × events with NaN where nothing was read."""
    settings = settings or Settings()
    ticks, columns = seen.shape
    if window < 1 or ticks % window:
        raise ValueError(f"{ticks} ticks do not divide into windows of {window}; cut the reading, or the window")
    read = np.isfinite(seen)
    lost = np.asarray(~read.any(axis=1))
    if lost.all():
        raise ValueError("no tick has any reading; is the PMU there (perf stat -e instructions true)?")
    always = [c for c in range(columns) if bool((read[:, c] | lost).all())]
    rest = [c for c in range(columns) if c not in always]
    logs = np.log(np.maximum(np.where(read, seen, 1.0), 0.5))
    state = logs[:, always].copy()
    at = np.arange(ticks)
    for index in range(len(always)):
        state[lost, index] = np.interp(at[lost], at[~lost], state[~lost, index])

    middle = np.array([logs[read[:, c], c].mean() if read[:, c].any() else 0.0 for c in range(columns)])
    spread = np.array([logs[read[:, c], c].std() + 1e-6 if read[:, c].any() else 1.0 for c in range(columns)])
    # Ratios to the first (instructions per cycle and the like) are what phases differ in most.
    ratios = np.concatenate([state, state[:, 1:] - state[:, :1]], axis=1) if always else at[:, None]
    base = _standardised(ratios.astype(np.float64))
    groups = _groups(read, rest, (logs - middle) / spread, base)
    kernel = _Kernel(ticks, groups[0].x.shape[1] if groups else 0, settings)
    for turn in range(settings.passes if groups else 0):
        if turn:
            groups = _with_factors(kernel, groups, base, settings.factors)
            kernel = _Kernel(ticks, groups[0].x.shape[1], settings)
        kernel.fit(groups, settings.steps)

    white = _white(logs, read, always)
    filled = np.where(read, seen, 0.0)
    variance = (settings.reading_error * filled) ** 2
    variance = variance.reshape(-1, window, columns).sum(axis=1)
    total = variance.sum(axis=0)
    for group in groups:
        unseen = ~read[:, group.columns[0]] & ~lost
        _fill(kernel.adapted(group, spread, white), group, middle, spread, unseen, filled, variance, total, window)
    bridged = _bridge(filled, lost, window)
    variance += bridged
    total += bridged.sum(axis=0)
    never = [c for c in rest if not read[:, c].any()]
    filled[:, never] = np.nan
    variance[:, never] = np.inf
    mean = filled.reshape(-1, window, columns).sum(axis=1)
    total[never] = np.inf
    return Reconstruction(mean, np.sqrt(variance), mean.sum(axis=0), np.sqrt(total))


def _white(logs: Floats, read: NDArray[np.bool_], always: list[int]) -> float:
    """Variance of what one tick's logarithm has to itself, from the counters read at every tick; no bound without any.

    The distance of a tick from the middle of its neighbours; the median, which changes of phase do not move. What
    wanders quickly is in it as well, so it is rather too large.
    """
    whole = read[1:-1] & read[2:] & read[:-2]
    apart = logs[1:-1] - 0.5 * (logs[2:] + logs[:-2])
    found = [float(np.median(apart[whole[:, c], c] ** 2)) / 0.455 / 1.5 for c in always if whole[:, c].any()]
    return float(np.median(found)) if found else float("inf")


def _standardised(features: Floats) -> torch.Tensor:
    spread = features.std(axis=0)
    keep = spread > 1e-9
    return torch.from_numpy((features[:, keep] - features[:, keep].mean(axis=0)) / spread[keep])


def _groups(read: NDArray[np.bool_], columns: list[int], values: Floats, state: torch.Tensor) -> list[_Group]:
    by_pattern: dict[bytes, list[int]] = {}
    for column in columns:
        if read[:, column].any():
            by_pattern.setdefault(read[:, column].tobytes(), []).append(column)
    groups = []
    for together in by_pattern.values():
        ticks = np.flatnonzero(read[:, together[0]])
        shown = torch.from_numpy(values[ticks][:, together])
        groups.append(_Group(torch.from_numpy(ticks), together, shown, state))
    return groups


def _with_factors(kernel: _Kernel, groups: list[_Group], base: torch.Tensor, count: int) -> list[_Group]:
    """The groups with what all *other* events have in common over time added to their state.

    A group's own events are left out: where they were seen, factors that contain them would give away the
    answer, and the model would trust the factors more than they deserve where they were not.
    """
    everywhere = torch.arange(len(kernel.t))
    with torch.no_grad():
        smoothed = [
            kernel(g.x, everywhere, g.ticks) @ torch.cholesky_solve(g.values, kernel.factor(g.x, g.ticks))
            for g in groups
        ]
    matrix = torch.cat(smoothed, dim=1)
    matrix = matrix - matrix.mean(0)
    covariance = matrix.T @ matrix
    owner = torch.cat([torch.full((len(g.columns),), index) for index, g in enumerate(groups)])
    extended = []
    for index, group in enumerate(groups):
        others = torch.nonzero(owner != index).flatten()
        factors = min(count, max(1, len(others) // 2)) if len(others) else 0
        _, vectors = torch.linalg.eigh(covariance[others][:, others])
        scores = matrix[:, others] @ vectors[:, len(others) - factors :].flip(1)
        padded = torch.zeros((len(everywhere), count), dtype=torch.float64)
        padded[:, :factors] = scores / (scores.std(0) + 1e-12)
        extended.append(_Group(group.ticks, group.columns, group.values, torch.cat([base, padded], dim=1)))
    return extended


def _fill(
    kernel: _Kernel,
    group: _Group,
    middle: Floats,
    spread: Floats,
    unseen: NDArray[np.bool_],
    filled: Floats,
    variance: Floats,
    total: Floats,
    window: int,
) -> None:
    """Posterior of the group's unseen ticks into `filled`; of the windows' sums and of the whole sum added."""
    ticks = len(filled)
    with torch.no_grad():
        everywhere = torch.arange(ticks)
        chol = kernel.factor(group.x, group.ticks)
        inverse = torch.cholesky_inverse(chol)
        weights = inverse @ group.values
        scale = kernel.scale(group, inverse)
        cross = kernel(group.x, everywhere, group.ticks)
        mean = (cross @ weights).numpy()
        white = torch.linalg.solve_triangular(chol, cross.T, upper=False)
        noise = float(kernel.noise())
        for row in range(ticks // window):
            span = np.flatnonzero(unseen[row * window : (row + 1) * window]) + row * window
            if not len(span):
                continue
            inside = torch.from_numpy(span)
            part = white[:, inside]
            # What is left to know of the rates at the unseen ticks, and each tick's own noise.
            left = (kernel(group.x, inside, inside) - part.T @ part).numpy()
            left[np.diag_indices(len(span))] += noise
            for index, column in enumerate(group.columns):
                size = scale[index] * spread[column] ** 2
                log_mean = middle[column] + spread[column] * mean[span, index]
                counts = np.exp(np.minimum(log_mean + 0.5 * size * np.diag(left), 50.0))
                filled[span, column] = counts
                variance[row, column] += size * float(counts @ left @ counts)
        # Windows err together, so the whole sum needs the covariance between them; a thinned set of ticks shows it.
        span = np.flatnonzero(unseen)
        span = span[:: max(1, len(span) // 400)]
        inside = torch.from_numpy(span)
        part = white[:, inside]
        left = (kernel(group.x, inside, inside) - part.T @ part).numpy()
        for index, column in enumerate(group.columns):
            counts = filled[span, column] * (unseen.sum() / max(len(span), 1))
            own = noise * float((filled[unseen, column] ** 2).sum())
            total[column] += scale[index] * spread[column] ** 2 * (float(counts @ left @ counts) + own)


def _bridge(filled: Floats, lost: NDArray[np.bool_], window: int) -> Floats:
    """Ticks of which nothing at all was read, from their neighbours; returns the windows' added variance.

    Their phase is unknown, so the model's own certainty does not hold there: neighbouring ticks differ as they differ.
    """
    at = np.arange(len(filled))
    added = np.zeros((len(filled) // window, filled.shape[1]))
    if not lost.any():
        return added
    gone = lost.reshape(-1, window).sum(axis=1)
    for column in range(filled.shape[1]):
        known = filled[~lost, column]
        filled[lost, column] = np.interp(at[lost], at[~lost], known)
        step = np.var(np.diff(known)) if len(known) > 2 else np.var(known)
        added[:, column] = gone * step * 0.75
    return added
