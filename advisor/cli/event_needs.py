"""Which events the contention model needs of this node's processor, for the node agent to count.

The model's network names them; `perf` has the vendor's table. Both are looked at in a process of their own that ends
(`python -m advisor.cli.event_needs`), so that the agent stays as small as it is. Where that cannot be told (no perf, no
numpy on the node, a processor without a table), the generic events are counted, as they are without a model.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Sequence

from advisor.telemetry.events import Cpu, EventGroup, EventSource, events_wanted

log = logging.getLogger(__name__)

_TIMEOUT_S = 120.0


def of_model(perf: str) -> EventSource:
    """What the agent counts: the model's events, in groups that fit the counters, and generic ones beside them."""

    def wanted(cpu: Cpu) -> list[EventGroup]:
        generic = events_wanted(cpu)
        needed = _asked(perf)
        if not needed:
            return generic
        room = max(1, cpu.counters)
        groups = [needed[start : start + room] for start in range(0, len(needed), room)]
        return [EventGroup(f"model {n}", tuple(group)) for n, group in enumerate(groups, 1)] + generic[:1]

    return wanted


def _asked(perf: str) -> list[str]:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "advisor.cli.event_needs", perf],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True,
        )  # fmt: skip
        found = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        why = (error.stderr.strip().splitlines() or ["no reason was given"])[-1]
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        why = str(error)
    else:
        return [str(event) for event in found]
    log.info("the generic events are counted, not those of the contention model: %s", why)
    return []


def needed_events(perf: str, cpu: str | None = None) -> list[str]:
    """The events of the cores that the model's network is made of; raises `PerfError`.

    Those of memory controllers and links count for a whole socket, so they tell nothing about one job; and terms that
    are more than an event's name (`pmu@event\\\\,cmask\\\\=1@`) come back from perf under another one.
    """
    from advisor.contention.network import build, counters
    from advisor.contention.vendor import read

    events = counters(build(read(cpu, perf))).get("core", ())
    return sorted(event for event in events if "@" not in event)


def main(arguments: Sequence[str]) -> int:
    """Prints the events as JSON; exit code 1 and a sentence where they cannot be told."""
    from advisor.contention.vendor import PerfError

    try:
        print(json.dumps(needed_events(arguments[0] if arguments else "perf")))
    except PerfError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
