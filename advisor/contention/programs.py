"""Synthetic programs with phases on a CPU's real events, and a PMU with few counters that watches them.

For benchmarks and tests: the truth is known here, which it never is on hardware. A node runs a few jobs, each moving
through phases of its own; every event follows from a microarchitectural state (nested stalls,
nested cache levels, traffic), so that the vendor's metrics take sensible values. The PMU rotates groups of
events over its counters at each tick, as perf does, loses some readings, and counts with some noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advisor.contention.network import pmu_of

Floats = NDArray[np.float64]
TICK_S = 0.004  # perf's default multiplexing interval on x86

# Counters that have their own register: they never wait for a turn. What a PMU lacks, the agent pins.
FIXED = (
    "INST_RETIRED.ANY",
    "CPU_CLK_UNHALTED.THREAD",
    "CPU_CLK_UNHALTED.REF_TSC",
    "TOPDOWN.SLOTS",
    "topdown-retiring",
    "topdown-bad-spec",
    "topdown-fe-bound",
    "topdown-be-bound",
    "ls_not_halted_cyc",
    "ex_ret_instr",
)


@dataclass(frozen=True)
class Pmu:
    """How many counters each unit has, and how badly they are read."""

    core_counters: int = 4
    uncore_counters: int = 4
    noise: float = 0.01  # relative, of one reading
    lost: float = 0.02  # share of ticks whose readings are lost


def _wander(draw: np.random.Generator, ticks: int, size: float) -> Floats:
    """Correlated noise within phases, and a slow drift over all of them."""
    rho = np.exp(-1.0 / draw.uniform(2, 12))
    steps = draw.normal(0, size * np.sqrt(1 - rho**2), size=ticks)
    noise = np.empty(ticks)
    value = draw.normal(0, size)
    for index in range(ticks):
        value = rho * value + steps[index]
        noise[index] = value
    return noise + np.cumsum(draw.normal(0, 0.1 / np.sqrt(ticks), size=ticks))


def _job(draw: np.random.Generator, ticks: int) -> dict[str, Floats]:
    """One job's microarchitectural state over time: parameters that jump with the phase and wander within it."""
    phases = int(draw.integers(3, 7))
    median_s = 10 ** draw.uniform(-2.3, -0.5)  # 5 ms to 300 ms
    stay = np.maximum(1, draw.lognormal(np.log(median_s / TICK_S), 0.7, size=ticks).astype(int))
    order = draw.integers(0, phases, size=ticks)
    sequence = np.repeat(order, stay)[:ticks]

    def level(middle: float, between: float, within: float) -> Floats:
        by_phase = middle * np.exp(draw.normal(0, between, size=phases))
        return np.asarray(by_phase[sequence] * np.exp(_wander(draw, ticks, within)))

    def share(middle: float, between: float, within: float) -> Floats:
        odds = level(middle / (1 - middle), between, within)
        return np.asarray(odds / (1 + odds))

    state = {
        "busy": share(0.6, 1.2, 0.05),
        "turbo": level(1.15, 0.03, 0.005),
        "retiring": share(0.35, 0.8, 0.06),
        "bad": share(0.05, 0.8, 0.08),
        "frontend": share(0.15, 0.7, 0.06),
        "uops_per_inst": level(1.15, 0.08, 0.01),
        "stalled": share(0.5, 0.8, 0.06),
        "mem_of_stalled": share(0.6, 1.0, 0.06),
        "l2_of_mem": share(0.6, 0.8, 0.06),
        "l3_of_l2": share(0.55, 0.8, 0.06),
        "stores": share(0.08, 1.0, 0.08),
        "bandwidth": share(0.15, 1.2, 0.08),
        "l1_miss": level(0.012, 1.0, 0.08),
        "fb_hit": level(0.008, 1.0, 0.08),
        "offcore": level(1.6, 0.5, 0.05),
        "l2_miss": share(0.4, 0.9, 0.06),
        "l3_miss": share(0.4, 0.9, 0.06),
        "prefetch": level(1.5, 0.5, 0.04),
        "writes": share(0.3, 0.6, 0.04),
        "remote": share(0.15, 1.0, 0.06),
        "io_in": level(2e8, 1.5, 0.15),
        "io_out": level(2e8, 1.5, 0.15),
        "loads": share(0.25, 0.3, 0.03),
        "stores_retired": share(0.1, 0.4, 0.03),
        "branches": share(0.15, 0.4, 0.03),
        "conditional": share(0.75, 0.3, 0.03),
        "taken": share(0.55, 0.5, 0.04),
        "calls": share(0.05, 0.8, 0.06),
        "decoded": share(0.3, 0.8, 0.06),
        "microcode": share(0.05, 0.8, 0.08),
        "executed": level(1.1, 0.05, 0.01),
    }
    state["parts"] = np.asarray(draw.dirichlet(np.ones(12) * 2.0))
    ports = np.stack([level(1.0, 0.5, 0.05) for _ in range(8)])
    state["ports"] = ports / ports.sum(axis=0)
    # An event without a rule of its own happens at some rate per instruction, stall or miss, which differs from
    # phase to phase and wanders within it like everything else.
    state["phase"] = sequence.astype(np.float64)
    return state


def _flows(s: Mapping[str, Floats]) -> dict[str, Floats]:
    """The job's rates per second of what everything else is made from; 16 cores at 2.4 GHz."""
    ref = 16 * 2.4e9 * s["busy"]
    clk = ref * s["turbo"]
    slots = 4 * clk
    free = 1 - s["bad"] - s["frontend"] * (1 - s["bad"])
    retired = slots * s["retiring"] * free
    inst = retired / s["uops_per_inst"]
    stalls = clk * s["stalled"] * (1 - s["retiring"] * free)
    l1_miss = inst * s["l1_miss"]
    offcore = l1_miss * s["offcore"] * (0.3 + s["l2_miss"])
    misses = offcore * s["l3_miss"]
    reads = misses * s["prefetch"]
    return {
        "ref": ref,
        "clk": clk,
        "slots": slots,
        "retired": retired,
        "inst": inst,
        "stalls": stalls,
        "l1_miss": l1_miss,
        "offcore": offcore,
        "misses": misses,
        "reads": reads,
        "writes": reads * s["writes"] / (1 - s["writes"]),
        "issued": retired + 0.5 * s["bad"] * slots,
        "loads": inst * s["loads"],
        "l2_load_miss": l1_miss * s["l2_miss"],
        "l3_load_miss": l1_miss * s["l2_miss"] * s["l3_miss"],
        "branches": inst * s["branches"],
        "demand": l1_miss * s["offcore"],
        "executed": (retired + 0.5 * s["bad"] * slots) * s["executed"],
    }


def _port(port: int) -> _Rule:
    return lambda f, s: f["executed"] * s["ports"][port]


_Rule = Callable[[Mapping[str, Floats], Mapping[str, Floats]], Floats]
# Event → rate, from flows f and state s. The first whose text is part of the event's name holds.
# Retired loads, requests, branches and micro-ops balance, as they do on the real thing.
_RULES: tuple[tuple[str, _Rule], ...] = (
    ("MEM_INST_RETIRED.ANY", lambda f, s: f["loads"] + f["inst"] * s["stores_retired"]),
    ("MEM_INST_RETIRED.ALL_LOADS", lambda f, s: f["loads"]),
    ("MEM_INST_RETIRED.ALL_STORES", lambda f, s: f["inst"] * s["stores_retired"]),
    ("MEM_LOAD_RETIRED.L1_HIT", lambda f, s: np.maximum(f["loads"] - f["l1_miss"] - f["inst"] * s["fb_hit"], 0.0)),
    ("MEM_LOAD_RETIRED.L2_HIT", lambda f, s: f["l1_miss"] - f["l2_load_miss"]),
    ("MEM_LOAD_RETIRED.L2_MISS", lambda f, s: f["l2_load_miss"]),
    ("MEM_LOAD_RETIRED.L3_HIT", lambda f, s: f["l2_load_miss"] - f["l3_load_miss"]),
    ("MEM_LOAD_RETIRED.L3_MISS", lambda f, s: f["l3_load_miss"]),
    ("L3_MISS_RETIRED.LOCAL_DRAM", lambda f, s: f["l3_load_miss"] * (1 - s["remote"])),
    ("L3_MISS_RETIRED.REMOTE_DRAM", lambda f, s: f["l3_load_miss"] * s["remote"] * 0.8),
    ("L3_MISS_RETIRED.REMOTE_FWD", lambda f, s: f["l3_load_miss"] * s["remote"] * 0.2 * (1 - s["stores"])),
    ("L3_MISS_RETIRED.REMOTE_HITM", lambda f, s: f["l3_load_miss"] * s["remote"] * 0.2 * s["stores"]),
    ("L2_RQSTS.ALL_DEMAND_DATA_RD", lambda f, s: f["demand"]),
    ("L2_RQSTS.DEMAND_DATA_RD_HIT", lambda f, s: f["demand"] * (1 - s["l2_miss"])),
    ("L2_RQSTS.DEMAND_DATA_RD_MISS", lambda f, s: f["demand"] * s["l2_miss"]),
    ("BR_INST_RETIRED.ALL_BRANCHES", lambda f, s: f["branches"]),
    ("BR_INST_RETIRED.COND_TAKEN", lambda f, s: f["branches"] * s["conditional"] * s["taken"]),
    ("BR_INST_RETIRED.COND_NTAKEN", lambda f, s: f["branches"] * s["conditional"] * (1 - s["taken"])),
    ("BR_INST_RETIRED.NOT_TAKEN", lambda f, s: f["branches"] * s["conditional"] * (1 - s["taken"])),
    ("BR_INST_RETIRED.COND", lambda f, s: f["branches"] * s["conditional"]),
    ("BR_INST_RETIRED.NEAR_CALL", lambda f, s: f["branches"] * s["calls"]),
    ("BR_INST_RETIRED.NEAR_RETURN", lambda f, s: f["branches"] * s["calls"]),
    ("BR_INST_RETIRED.NEAR_TAKEN", lambda f, s: f["branches"] * (1 - s["conditional"] * (1 - s["taken"]))),
    ("IDQ.DSB_UOPS", lambda f, s: f["issued"] * (1 - s["decoded"]) * (1 - s["microcode"])),
    ("IDQ.MITE_UOPS", lambda f, s: f["issued"] * s["decoded"] * (1 - s["microcode"])),
    ("IDQ.MS_UOPS", lambda f, s: f["issued"] * s["microcode"]),
    ("UOPS_EXECUTED.THREAD", lambda f, s: f["executed"]),
    *((f"DISPATCHED_PORT.PORT_{port}", _port(port)) for port in range(8)),
    ("CPU_CLK_UNHALTED.REF_XCLK", lambda f, s: f["ref"] / 24),
    ("CPU_CLK_UNHALTED.ONE_THREAD_ACTIVE", lambda f, s: f["ref"] / 24 * 0.4 * (1.2 - s["busy"])),
    ("CPU_CLK_UNHALTED.REF_TSC", lambda f, s: f["ref"]),
    ("CPU_CLK_UNHALTED", lambda f, s: f["clk"]),
    ("ls_not_halted_cyc", lambda f, s: f["clk"]),
    ("INST_RETIRED.ANY", lambda f, s: f["inst"]),
    ("ex_ret_instr", lambda f, s: f["inst"]),
    ("UOPS_ISSUED.ANY", lambda f, s: f["issued"]),
    ("UOPS_RETIRED", lambda f, s: f["retired"]),
    ("RECOVERY_CYCLES,", lambda f, s: 0.01 * s["bad"] * f["clk"]),
    ("RECOVERY_CYCLES", lambda f, s: 0.5 * s["bad"] * f["clk"]),
    ("IDQ_UOPS_NOT_DELIVERED", lambda f, s: f["slots"] * s["frontend"] * (1 - s["bad"])),
    ("TOPDOWN.SLOTS", lambda f, s: f["slots"]),
    ("topdown-retiring", lambda f, s: f["retired"]),
    ("topdown-bad-spec", lambda f, s: f["slots"] * s["bad"]),
    ("topdown-fe-bound", lambda f, s: f["slots"] * s["frontend"] * (1 - s["bad"])),
    (
        "topdown-be-bound",
        lambda f, s: f["slots"] * (1 - s["bad"]) * (1 - s["frontend"]) - f["retired"],
    ),
    ("STALLS_TOTAL", lambda f, s: f["stalls"]),
    ("STALLS_MEM_ANY", lambda f, s: f["stalls"] * s["mem_of_stalled"]),
    ("STALLS_L2_MISS", lambda f, s: f["stalls"] * s["mem_of_stalled"] * s["l2_of_mem"]),
    ("STALLS_L3_MISS", lambda f, s: f["stalls"] * s["mem_of_stalled"] * s["l2_of_mem"] * s["l3_of_l2"]),
    ("BOUND_ON_STORES", lambda f, s: f["clk"] * s["stores"] * 0.3),
    ("1_PORTS_UTIL", lambda f, s: (f["clk"] - f["stalls"]) * (1 - s["retiring"]) * 0.6),
    ("2_PORTS_UTIL", lambda f, s: (f["clk"] - f["stalls"]) * s["retiring"] * 0.7),
    ("OUTSTANDING.ALL_DATA_RD", lambda f, s: f["clk"] * s["bandwidth"]),
    ("SQ_FULL", lambda f, s: f["clk"] * s["bandwidth"] * s["l2_miss"] * 0.4),
    ("L1D_PEND_MISS.L2_STALL", lambda f, s: f["clk"] * s["bandwidth"] * s["l2_miss"] * 0.4),
    ("MEM_LOAD_RETIRED.FB_HIT", lambda f, s: f["inst"] * s["fb_hit"]),
    ("MEM_LOAD_RETIRED.L1_MISS", lambda f, s: f["l1_miss"]),
    ("OFFCORE_REQUESTS.ALL", lambda f, s: f["offcore"]),
    ("REMOTE_DRAM", lambda f, s: f["misses"] * s["remote"] * 0.5),
    ("REMOTE_FWD", lambda f, s: f["misses"] * s["remote"] * 0.1 * s["l3_miss"]),
    ("REMOTE_HITM", lambda f, s: f["misses"] * s["remote"] * 0.1 * s["stores"]),
    ("cas_count_read", lambda f, s: f["reads"]),
    ("CAS_COUNT.RD", lambda f, s: f["reads"]),
    ("cas_count_write", lambda f, s: f["writes"]),
    ("CAS_COUNT.WR", lambda f, s: f["writes"]),
    ("READS_LOCAL", lambda f, s: f["reads"] * (1 - s["remote"])),
    ("READS_REMOTE", lambda f, s: f["reads"] * s["remote"]),
    ("WRITES_LOCAL", lambda f, s: f["writes"] * (1 - s["remote"])),
    ("WRITES_REMOTE", lambda f, s: f["writes"] * s["remote"]),
    ("UNC_UPI", lambda f, s: (f["reads"] + f["writes"]) * s["remote"] * 9),
    ("MEM_WRITE.PART0", lambda f, s: s["io_in"] / 4 * s["parts"][0]),
    ("MEM_WRITE.PART1", lambda f, s: s["io_in"] / 4 * s["parts"][1]),
    ("MEM_WRITE.PART2", lambda f, s: s["io_in"] / 4 * s["parts"][2]),
    ("MEM_WRITE.PART3", lambda f, s: s["io_in"] / 4 * s["parts"][3]),
    ("MEM_READ.PART0", lambda f, s: s["io_out"] / 4 * s["parts"][4]),
    ("MEM_READ.PART1", lambda f, s: s["io_out"] / 4 * s["parts"][5]),
    ("MEM_READ.PART2", lambda f, s: s["io_out"] / 4 * s["parts"][6]),
    ("MEM_READ.PART3", lambda f, s: s["io_out"] / 4 * s["parts"][7]),
    ("IO_HIT_ITOMCACHENEAR", lambda f, s: s["io_in"] / 64 * s["parts"][0]),
    ("IO_MISS_ITOMCACHENEAR", lambda f, s: s["io_in"] / 64 * s["parts"][1]),
    ("IO_HIT_ITOM", lambda f, s: s["io_in"] / 64 * s["parts"][2]),
    ("IO_MISS_ITOM", lambda f, s: s["io_in"] / 64 * s["parts"][3]),
    ("IO_HIT_PCIRDCUR", lambda f, s: s["io_out"] / 64 * s["parts"][4]),
    ("IO_MISS_PCIRDCUR", lambda f, s: s["io_out"] / 64 * s["parts"][5]),
    ("IO_PCIRDCUR", lambda f, s: s["io_out"] / 64 * (s["parts"][4] + s["parts"][5])),
    ("dram_channel_data_controller", lambda f, s: (f["reads"] + f["writes"]) / 8),
    ("remote_outbound_data_controller", lambda f, s: (f["reads"] + f["writes"]) * s["remote"] * 2 / 4),
    ("l2_pf_miss_l2_hit_l3", lambda f, s: f["offcore"] * 0.3 * (1 - s["l3_miss"]) * s["prefetch"]),
    ("l2_pf_miss_l2_l3", lambda f, s: f["offcore"] * 0.3 * s["l3_miss"] * s["prefetch"]),
    ("ic_dc_miss_in_l2", lambda f, s: f["offcore"]),
)


# What events without a rule go with.
_DRIVERS = (
    ("UNC_", "offcore"),
    ("cha", "offcore"),
    ("imc", "reads"),
    ("OFFCORE", "offcore"),
    ("L2", "l1_miss"),
    ("l2_", "l1_miss"),
    ("xi_", "misses"),
    ("STALL", "stalls"),
    ("CYCLE", "stalls"),
    ("INST", "inst"),
    ("BR_", "inst"),
    ("UOPS", "retired"),
    ("IDQ", "retired"),
    ("FP_", "inst"),
    ("ex_ret", "inst"),
)


def truth(events: Sequence[str], seconds: float, seed: int) -> Floats:
    """Counts of each event in each tick (ticks × events) on one node, without any error."""
    draw = np.random.default_rng(seed)
    ticks = round(seconds / TICK_S)
    counts = np.zeros((ticks, len(events)))
    for _ in range(int(draw.integers(1, 4))):
        state = _job(draw, ticks)
        flows = _flows(state)
        for column, event in enumerate(events):
            rate = next((rule(flows, state) for text, rule in _RULES if text in event), None)
            if rate is None:
                driver = next((flow for text, flow in _DRIVERS if text in event), "clk")
                factor = np.exp(draw.normal(-3, 0.8, size=8))[state["phase"].astype(int)]
                rate = flows[driver] * factor * np.exp(_wander(draw, ticks, 0.06))
            counts[:, column] += rate * TICK_S
    # Every event has a life of its own that no other explains, and whole numbers.
    counts *= np.exp(draw.normal(0, 0.02, size=counts.shape))
    return draw.poisson(np.minimum(counts, 1e15)).astype(np.float64)


def groups(events: Sequence[str], pmu: Pmu) -> list[list[int]]:
    """Which events count together: each unit's events in turns of as many as it has counters."""
    by_unit: dict[str, list[int]] = {}
    for column, event in enumerate(events):
        if event not in FIXED:
            by_unit.setdefault(pmu_of(event), []).append(column)
    turns = []
    for unit, columns in by_unit.items():
        size = pmu.core_counters if unit == "core" else pmu.uncore_counters
        turns.append([columns[i : i + size] for i in range(0, len(columns), size)])
    return [group for unit_turns in turns for group in unit_turns]


def measure(true: Floats, events: Sequence[str], pmu: Pmu, seed: int) -> Floats:
    """What the PMU saw of the truth: NaN where an event had no counter in that tick or its reading was lost."""
    draw = np.random.default_rng(seed)
    ticks = len(true)
    seen = np.full_like(true, np.nan)
    rotation: dict[str, list[list[int]]] = {}
    for group in groups(events, pmu):
        rotation.setdefault(pmu_of(events[group[0]]), []).append(group)
    noisy = true * np.exp(draw.normal(0, pmu.noise, size=true.shape))
    for column, event in enumerate(events):
        if event in FIXED:
            seen[:, column] = noisy[:, column]
    for turns in rotation.values():
        start = int(draw.integers(len(turns)))
        for index, group in enumerate(turns):
            on = (np.arange(ticks) + start) % len(turns) == index
            seen[np.ix_(on, group)] = noisy[np.ix_(on, group)]
    seen[draw.random(ticks) < pmu.lost] = np.nan
    return seen


def scaled_by_perf(seen: Floats) -> Floats:
    """perf's own estimate of each event's total: what was counted × time enabled / time running."""
    running = np.maximum(np.isfinite(seen).sum(axis=0), 1)
    return np.asarray(np.nansum(seen, axis=0) * len(seen) / running)
