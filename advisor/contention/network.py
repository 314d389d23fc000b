"""The network of one CPU: from the counters that can be measured, through the vendor's metrics, to the utilisations.

Resources are what placement can act on. Each has views: expressions, in perf's own language, that
tell its utilisation from metrics. A network keeps the views that this CPU's table and this node's
counters allow, and of the vendor's graph only the ancestors of those. A resource with no view keeps its prior.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from advisor.contention.expression import Expression, constants, names, parse
from advisor.contention.vendor import Relations


@dataclass(frozen=True)
class View:
    """One way to see a utilisation. `tolerance` is how far, relatively, it may be from the truth at best."""

    text: str
    tolerance: float
    fallback: bool = False  # only where nothing better can be counted

    @cached_property
    def tree(self) -> Expression:
        """The parsed expression."""
        return parse(self.text)


@dataclass(frozen=True)
class Resource:
    """Something that jobs on a node share, and what is believed of its use before anything is measured."""

    name: str
    sentence: str
    views: tuple[View, ...]
    prior_mean: float = 0.3
    prior_sd: float = 0.3


# Counts of software (cgroup files, nvml) and perf's generic events, which mean much the same on every CPU, are named
# like perf's own `pmu@event@`, so that one language serves for all. Capacities are constants of the machine.
SOFTWARE = ("cgroup@", "nvml@", "perf@", "duration_time")

RESOURCES: tuple[Resource, ...] = (
    Resource(
        "core",
        "share of the time that the cores are busy",
        (
            View("CPU_Utilization", 0.03),
            View("cpu_utilization_percent / 100", 0.03),
            View("cgroup@cpu_seconds@ / duration_time / #num_cpus", 0.05),
            # What the cores feel: a core that waits for memory is busy, but leaves its units free.
            View("CPU_Utilization * (1 - 0.5 * tma_memory_bound)", 0.4),
        ),
    ),
    Resource(
        "memory_bandwidth",
        "bytes to and from memory, of what the sockets can move",
        (
            View("DRAM_BW_Use / #memory_gbs", 0.03),
            View("memory_bandwidth_total / 1000 / #memory_gbs", 0.03),
            View("nps1_die_to_dram * 64 / 1000000000 / duration_time / #memory_gbs", 0.05),
            # Reads and writes that miss the last-level cache all end in some socket's memory.
            View(
                "(llc_miss_local_memory_bandwidth_read + llc_miss_local_memory_bandwidth_write"
                " + llc_miss_remote_memory_bandwidth_read + llc_miss_remote_memory_bandwidth_write)"
                " / 1000 / #memory_gbs",
                0.15,
            ),
            View("CPU_Utilization * tma_mem_bandwidth", 0.5),
            # Without the vendor's table: what misses the last cache, though without what was fetched ahead.
            View(r"perf@cache\-misses@ * 64 / 1000000000 / duration_time / #memory_gbs", 0.4, fallback=True),
            # A busy core moves some memory: all that is left where nothing else is counted.
            View("0.5 * cgroup@cpu_seconds@ / duration_time / #num_cpus", 0.8, fallback=True),
        ),
    ),
    Resource(
        "llc",
        "bytes between the cores and the last-level cache, of what it can serve",
        (
            View("L3_Cache_Access_BW / #llc_gbs", 0.03),
            View("all_l2_cache_misses * 64 / 1000000000 / duration_time / #llc_gbs", 0.05),
            View("CPU_Utilization * (tma_l3_bound + tma_sq_full)", 0.5),
            View(r"perf@cache\-references@ * 64 / 1000000000 / duration_time / #llc_gbs", 0.4, fallback=True),
            View("0.5 * cgroup@cpu_seconds@ / duration_time / #num_cpus", 0.8, fallback=True),
        ),
    ),
    Resource(
        "interconnect",
        "bytes between the sockets, of what the links carry",
        (
            View("upi_data_transmit_bw / 1000 / #interconnect_gbs", 0.03),
            View("all_remote_links_outbound * 32 / 1000000000 / duration_time / #interconnect_gbs", 0.05),
            View(
                "(llc_miss_remote_memory_bandwidth_read + llc_miss_remote_memory_bandwidth_write)"
                " / 1000 / #interconnect_gbs",
                0.3,
            ),
            View("CPU_Utilization * (tma_remote_dram + tma_remote_cache)", 0.6),
        ),
        prior_mean=0.2,
    ),
    Resource(
        "io",
        "bytes that devices read and write in memory, of what PCIe carries",
        (
            View("(IO_Read_BW + IO_Write_BW) / #io_gbs", 0.03),
            View(
                "(io_bandwidth_disk_or_network_reads + io_bandwidth_disk_or_network_writes) / 1000 / #io_gbs",
                0.05,
            ),
            View("cgroup@io_bytes@ / 1000000000 / duration_time / #io_gbs", 0.4, fallback=True),
        ),
        prior_mean=0.15,
        prior_sd=0.2,
    ),
    Resource(
        "memory",
        "memory that the jobs hold, of what the node has",
        (View("cgroup@memory_bytes@ / #memory_bytes", 0.01),),
    ),
    Resource(
        "disk",
        "bytes that the jobs read and write, of what the disks can do",
        (View("cgroup@io_bytes@ / 1000000000 / duration_time / #disk_gbs", 0.03),),
        prior_mean=0.1,
        prior_sd=0.2,
    ),
    Resource(
        "gpu_sm",
        "share of the time that the GPU's multiprocessors are busy",
        (View("nvml@sm_percent@ / 100", 0.03),),
    ),
    Resource(
        "gpu_memory",
        "share of the time that the GPU's memory is read or written",
        (View("nvml@memory_percent@ / 100", 0.03),),
    ),
)

# What a middling two-socket server has; a site that knows better passes its own.
CAPACITIES: Mapping[str, float] = {
    "memory_gbs": 200.0,
    "llc_gbs": 600.0,
    "interconnect_gbs": 60.0,
    "io_gbs": 60.0,
    "disk_gbs": 2.0,
    "memory_bytes": 256e9,
}


@dataclass(frozen=True)
class Network:
    """What is kept of one CPU's relations, and the edges between it."""

    cpu: str
    relations: Relations
    resources: tuple[Resource, ...]  # each with only the views that can be computed here
    metrics: tuple[str, ...]  # in evaluation order
    events: tuple[str, ...]  # what must be measured

    @cached_property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """From what is used to what uses it: event → metric → metric → resource."""
        found: dict[tuple[str, str], None] = {}
        for metric in self.metrics:
            for used in names(self.relations.metrics[metric].tree):
                found[used, metric] = None
        for resource in self.resources:
            for view in resource.views:
                for used in names(view.tree):
                    found[used, resource.name] = None
        return tuple(found)

    @cached_property
    def surplus_edges(self) -> int:
        """Edges more than a forest would have; redundancy, which is what corrects errors."""
        parent = {node: node for edge in self.edges for node in edge}

        def root(node: str) -> str:
            while parent[node] != node:
                node = parent[node]
            return node

        surplus = 0
        for one, other in self.edges:
            a, b = root(one), root(other)
            surplus += a == b
            parent[a] = b
        return surplus

    def expression(self, metric: str) -> str:
        """The vendor's own text of a metric."""
        return self.relations.metrics[metric].text


def build(
    relations: Relations,
    resources: Iterable[Resource] = RESOURCES,
    countable: Collection[str] | None = None,
) -> Network:
    """The network of a CPU. `countable` limits it to what a node can really measure; None means everything.

    Software counts are always taken as measurable: where one is missing it simply stays unobserved.
    """

    def can(event: str) -> bool:
        return countable is None or event in countable or event.startswith(SOFTWARE)

    def usable(view: View) -> bool:
        for name in names(view.tree):
            if name not in relations.metrics and not name.startswith(SOFTWARE):
                return False
        leaves = [n for n in relations.ancestors(names(view.tree)) if n not in relations.metrics]
        return all(map(can, leaves))

    kept = []
    for resource in resources:
        views = tuple(filter(usable, resource.views))
        views = tuple(view for view in views if not view.fallback) or views
        kept.append(replace(resource, views=views))
    wanted = dict.fromkeys(name for r in kept for view in r.views for name in names(view.tree))
    ancestors = relations.ancestors(wanted)
    events = [name for name in ancestors if name not in relations.metrics]
    events += [name for name in wanted if name not in relations.metrics and name not in events]
    return Network(
        relations.cpu, relations, tuple(kept), tuple(n for n in ancestors if n in relations.metrics), tuple(events)
    )


def needed_constants(network: Network) -> tuple[str, ...]:
    """The `#constants` that some kept expression uses."""
    trees = [network.relations.metrics[name].tree for name in network.metrics]
    trees += [view.tree for resource in network.resources for view in resource.views]
    return tuple(dict.fromkeys(name for tree in trees for name in constants(tree)))


def pmu_of(event: str) -> str:
    """Which unit counts an event: its counters, and so its multiplexing, are its own."""
    if event.startswith(SOFTWARE) or event.startswith("msr@"):
        return "software"
    if event.startswith("UNC_"):
        return "uncore " + event.split("_")[1].lower()
    head, at, _ = event.partition("@")
    if at and not head.startswith("cpu"):
        unit = head.removeprefix("uncore_").rstrip("0123456789_")
        return "uncore " + {"imc": "m"}.get(unit, unit)
    if event.startswith(("dram_channel", "remote_outbound")):
        return "uncore df"
    if event.startswith("xi_"):
        return "uncore l3"
    return "core"


def counters(network: Network) -> dict[str, tuple[str, ...]]:
    """The events to measure, by the unit that counts them."""
    by_unit: dict[str, list[str]] = {}
    for event in network.events:
        by_unit.setdefault(pmu_of(event), []).append(event)
    return {unit: tuple(events) for unit, events in sorted(by_unit.items())}
