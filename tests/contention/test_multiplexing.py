"""Counters that took turns are put right by those that did not."""

import numpy as np
import pytest

from advisor.contention.multiplex import Settings, reconstruct
from advisor.contention.programs import FIXED, Pmu, groups, measure, scaled_by_perf, truth

EVENTS = (
    "INST_RETIRED.ANY",
    "CPU_CLK_UNHALTED.THREAD",
    "CPU_CLK_UNHALTED.REF_TSC",
    "MEM_LOAD_RETIRED.L1_MISS",
    "MEM_LOAD_RETIRED.FB_HIT",
    "CYCLE_ACTIVITY.STALLS_TOTAL",
    "CYCLE_ACTIVITY.STALLS_MEM_ANY",
    "UOPS_ISSUED.ANY",
    "OFFCORE_REQUESTS.ALL_REQUESTS",
    "EXE_ACTIVITY.1_PORTS_UTIL",
    "IDQ_UOPS_NOT_DELIVERED.CORE",
    "UNC_M_CAS_COUNT.RD",
    "UNC_M_CAS_COUNT.WR",
)
WINDOW = 25
QUICK = Settings(factors=4, passes=2, steps=20)


def windows(counts):
    return counts.reshape(-1, WINDOW, counts.shape[1]).sum(axis=1)


def relative(estimate, true):
    return np.abs(estimate - true) / np.maximum(true, 0.1 * true.mean(axis=0))


@pytest.mark.parametrize("seed", [1, 2])
def test_reconstructed_windows_are_much_nearer_than_perfs_scaling_and_know_their_error(seed):
    true = truth(EVENTS, 4.0, seed)
    seen = measure(true, EVENTS, Pmu(core_counters=2), seed)
    took_turns = np.isnan(seen).mean(axis=0) > 0.1
    ours = reconstruct(seen, WINDOW, QUICK)
    raw = np.stack([scaled_by_perf(part) for part in seen.reshape(-1, WINDOW, len(EVENTS))])
    error = relative(ours.mean, windows(true))[:, took_turns].mean()
    assert error < 0.5 * relative(raw, windows(true))[:, took_turns].mean()
    inside = np.abs(ours.mean - windows(true)) < 1.645 * ours.sd
    assert 0.75 < inside[:, took_turns].mean() < 0.99


def test_an_event_that_was_never_counted_stays_unknown():
    true = truth(EVENTS, 1.0, 3)
    seen = measure(true, EVENTS, Pmu(), 3)
    seen[:, 5] = np.nan
    ours = reconstruct(seen, WINDOW, QUICK)
    assert np.isnan(ours.mean[:, 5]).all() and np.isinf(ours.sd[:, 5]).all()
    assert np.isfinite(np.delete(ours.mean, 5, axis=1)).all()


def test_the_same_readings_give_the_same_estimate():
    seen = measure(truth(EVENTS, 1.0, 4), EVENTS, Pmu(), 4)
    one, other = reconstruct(seen, WINDOW, QUICK), reconstruct(seen, WINDOW, QUICK)
    assert np.array_equal(one.mean, other.mean)


def test_a_reading_without_anything_in_it_is_refused():
    with pytest.raises(ValueError, match="no tick has any reading"):
        reconstruct(np.full((50, 3), np.nan), WINDOW)
    with pytest.raises(ValueError, match="do not divide"):
        reconstruct(np.ones((51, 3)), WINDOW)


def test_the_pmu_never_counts_more_events_at_once_than_it_has_counters():
    pmu = Pmu(core_counters=3, lost=0.0)
    seen = np.isfinite(measure(truth(EVENTS, 0.4, 5), EVENTS, pmu, 5))
    core = [i for i, e in enumerate(EVENTS) if e not in FIXED and not e.startswith("UNC_")]
    assert seen[:, core].sum(axis=1).max() <= 3
    assert seen[:, [i for i, e in enumerate(EVENTS) if e in FIXED]].all()
    assert all(len(group) <= 4 for group in groups(EVENTS, pmu))


def test_wandering_between_far_readings_is_not_taken_for_noise_that_cancels():
    # Nothing tells of these events but their own readings, thirty ticks apart, while they wander within five.
    draw = np.random.default_rng(7)
    ticks, events = 1500, 30
    wander = np.zeros((ticks, events))
    for tick in range(1, ticks):
        wander[tick] = np.exp(-1 / 5) * wander[tick - 1] + draw.normal(0, 0.1 * np.sqrt(1 - np.exp(-2 / 5)), events)
    steady = np.exp(draw.normal(0, 0.01, size=(ticks, 2)))  # always on, and all but free of noise
    true = 1e6 * np.concatenate([steady, np.exp(wander + draw.normal(0, 0.01, size=wander.shape))], axis=1)
    seen = true * np.exp(draw.normal(0, 0.01, size=true.shape))
    turns = (np.arange(ticks)[:, None] + np.arange(events)) % events == 0
    seen[:, 2:][~turns] = np.nan
    ours = reconstruct(seen, WINDOW, Settings(factors=2, passes=1, steps=10))
    inside = (np.abs(ours.mean - windows(true)) < 1.645 * ours.sd)[:, 2:]
    assert 0.86 < inside.mean() < 0.97
