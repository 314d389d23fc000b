"""The node agent: measures the jobs of one compute node and brings the figures to the daemon.

Runs as root on each node, as `advisor agent` or, where only Python itself is installed, as
`python3 -m advisor.telemetry.agent`: nothing but the standard library is imported here, which also keeps it small. One
thread measures, at a steady pace; another delivers, so that a daemon that is away delays no measurement.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from advisor.telemetry import events, munge, notes, perfrun, spool
from advisor.telemetry.courier import Clocks, Courier
from advisor.telemetry.gpu import Gpus
from advisor.telemetry.jobs import Jobs, cluster_name
from advisor.telemetry.sampler import Sampler

log = logging.getLogger(__name__)

SPOOL = Path("/var/lib/slurm-advisor-agent")


@dataclass(frozen=True, slots=True)
class Options:
    """What an agent needs to know."""

    daemon: tuple[str, int] | None  # None: samples stay in the spool
    node: str
    period_s: float = 10.0
    deliver_s: float = 60.0
    spool: Path = SPOOL
    spool_mb: int = 64
    perf: str = "perf"  # "": no counters
    events: tuple[str, ...] = ()  # groups; none: what `events_wanted` says
    munge_socket: str | None = None
    scontrol: tuple[str, ...] = ("scontrol",)
    cluster: str = ""


class Agent:
    """Measures and delivers until stopped."""

    def __init__(self, options: Options, wanted: events.EventSource = events.events_wanted) -> None:
        self._options = options
        self._notes = notes.Notes()
        self._stop = threading.Event()
        cluster = options.cluster or cluster_name(options.scontrol)
        boot = spool.boot_id()
        run = spool.new_run(boot, lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        # Several nodes on one host share its folder and its boot.
        folder = options.spool / options.node
        self.spool = spool.Spool(folder, boot, run, options.spool_mb << 20)
        groups = events.groups_of(options.events) or wanted(events.this_cpu())
        perf = perfrun.PerfStat(events.Rotation(groups), self._notes, options.perf) if options.perf else None
        jobs = Jobs(options.node, self._notes, scontrol=options.scontrol, cluster=cluster)
        self.sampler = Sampler(jobs, perf, Gpus(self._notes), self._notes)
        self.courier = (
            Courier(
                self.spool,
                munge.open_munge(options.munge_socket),
                options.daemon,
                options.node,
                boot,
                Clocks(),
                cluster,
            )
            if options.daemon
            else None
        )

    def stop(self) -> None:
        """Ends `run` after the present step."""
        self._stop.set()

    def once(self) -> dict[str, Any]:
        """One period, as it would be delivered; for a look by hand."""
        self.sampler.sample()
        self._stop.wait(self._options.period_s)
        sample = self.sampler.sample() or {}
        self.sampler.close()
        return {"node_name": self._options.node, **sample, "notes": [asdict(note) for note in self._notes.take()]}

    def run(self) -> None:
        """Works until `stop`; what was measured by then is delivered, or waits in the spool."""
        courier = threading.Thread(target=self._deliver, name="courier", daemon=True)
        courier.start()
        due = time.monotonic()
        while not self._stop.is_set():
            self._try(self.step, "the node could not be measured; that is tried again in the next period")
            due += self._options.period_s
            if due < time.monotonic():  # the node was suspended, or too busy: no catching up
                due = time.monotonic() + self._options.period_s
            self._stop.wait(due - time.monotonic())
        self._try(self.step, "the last period could not be measured")
        self.sampler.close()
        courier.join(timeout=30)  # longer than a delivery to a daemon that does not answer

    def step(self) -> None:
        """Measures once."""
        sample = self.sampler.sample()
        if sample is not None:
            self.spool.add(stamped(sample, time.time(), self._notes))

    def _deliver(self) -> None:
        if self.courier is None:
            return
        pause = self._options.deliver_s
        while not self._stop.wait(pause):
            self._try(self.courier.deliver, "the delivery failed; it is tried again")
            pause = self.courier.pause_s(self._options.deliver_s)
        # The last period is measured while this thread ends.
        time.sleep(0.5)
        self._try(self.courier.deliver, "the last delivery failed; what is left waits in the spool")

    @staticmethod
    def _try(work: Callable[[], object], otherwise: str) -> None:
        try:
            work()
        except Exception:  # both threads must live as long as the agent: what one period costs, the next may bring
            log.exception("%s", otherwise)


def stamped(sample: dict[str, Any], wall: float, noted: notes.Notes) -> dict[str, Any]:
    """A sample with the time of the node's clock and what was noted since the last one."""
    new = [[note.subject, note.what, note.text] for note in noted.take()]
    return {"t": round(wall, 3), **sample, **({"notes": new} if new else {})}


def address(text: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port`; raises `ValueError` with a sentence."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address: write host:port, for example ctl:6815")
    return host, int(port)


def serve(options: Options, wanted: events.EventSource = events.events_wanted) -> int:
    """Runs an agent until SIGTERM or SIGINT; the exit code."""
    agent = Agent(options, wanted)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    where = "{}:{}".format(*options.daemon) if options.daemon else "no daemon: samples stay in the spool"
    log.info("node %s, every %g s, spool %s, %s", options.node, options.period_s, options.spool, where)
    agent.run()
    return 0


def this_node() -> str:
    """The node's name as Slurm usually has it."""
    return socket.gethostname().partition(".")[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """The plain entry point, without settings files."""
    parser = argparse.ArgumentParser(prog="advisor.telemetry.agent", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--daemon", metavar="HOST:PORT", help="where the daemon listens (telemetry.listen)")
    parser.add_argument("--node", default=this_node(), help="this node's name in Slurm")
    parser.add_argument("--period", type=float, default=10.0, metavar="S", help="seconds between two samples")
    parser.add_argument("--deliver", type=float, default=60.0, metavar="S", help="seconds between two deliveries")
    parser.add_argument("--spool", type=Path, default=SPOOL, metavar="DIR", help="where samples wait")
    parser.add_argument("--spool-mb", type=int, default=64, metavar="MB", help="how much may wait")
    parser.add_argument("--perf", default="perf", metavar="PROGRAM", help="perf; empty: no counters")
    parser.add_argument("--events", action="append", default=[], metavar="E,E,…", help="a group of events (repeatable)")
    parser.add_argument("--munge-socket", metavar="PATH", help="munged's socket, where it is not the usual one")
    parser.add_argument("--cluster", default="", help="the cluster's name, where scontrol does not tell it")
    parser.add_argument("--once", action="store_true", help="measure one period, print it, deliver nothing")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s")
    try:
        daemon = address(given.daemon) if given.daemon else None
    except ValueError as error:
        parser.error(str(error))
    options = Options(
        daemon=daemon,
        node=given.node,
        period_s=given.period,
        deliver_s=given.deliver,
        spool=given.spool,
        spool_mb=given.spool_mb,
        perf=given.perf,
        events=tuple(given.events),
        munge_socket=given.munge_socket,
        cluster=given.cluster,
    )
    if given.once:
        print(json.dumps(Agent(options).once(), indent=1))
        return 0
    return serve(options)


if __name__ == "__main__":
    sys.exit(main())
