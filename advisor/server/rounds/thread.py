"""The thread that makes the rounds: when one is due, on which facts, and what is told of it.

No job is touched while the facts are old, Slurm does not answer, the log cannot be written, or the disable file is
there; each is said once. All that the thread must know of the past is in the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from advisor.cluster.command import SlurmCommand
from advisor.cluster.types import ClusterState, Job
from advisor.config import Processor, Settings
from advisor.performance import processors
from advisor.performance.snapshot import Snapshot
from advisor.policy.guarded import Guarded
from advisor.policy.interface import Policy
from advisor.protocol import PartitionLimits
from advisor.server import frames, rights
from advisor.server.rounds import acting
from advisor.server.rounds.known import Known, after, known, mode_now, stays
from advisor.server.rounds.looking import Movable, Proposal, look, movable, said_in_short
from advisor.store import decisions, moves
from advisor.store.database import Database, RowError, StoreError
from advisor.store.moves import MoveRow
from advisor.store.outcomes import token_in
from advisor.training.serving import policy_in_force

log = logging.getLogger(__name__)

Send = Callable[[frames.FromCollector], None]


class NotNow(Exception):
    """Why there is no round; the text is told once."""


class Rounds:
    """Looks at the pending jobs again and again."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._settings: Settings | None = None
        self._latest: tuple[ClusterState, Snapshot] | None = None
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._next = 0.0
        self._acted_at = 0.0  # what was polled before that does not show what was done
        self._made_for: Settings | None = None
        self._policy: Policy | None = None
        self._processors: dict[str, Processor] = {}
        self._known: dict[str, Known] = {}
        self._db: Database | None = None
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._run, name="rounds", daemon=True)
        self._thread.start()

    def configure(self, settings: Settings) -> None:
        """Works with these settings from now on."""
        with self._lock:
            self._settings = settings
            self._next = 0.0
        self._wake.set()

    def seen(self, state: ClusterState, snapshot: Snapshot) -> None:
        """What the last poll showed."""
        with self._lock:
            self._latest = (state, snapshot)
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait(timeout=1.0)
            self._wake.clear()
            with self._lock:
                settings, latest = self._settings, self._latest
            if settings is None or latest is None or time.monotonic() < self._next:
                continue
            if not settings.levers or settings.slurm.source == "recorded":  # a recording has no jobs to move
                self._well()
                continue
            try:
                if latest[0].taken_at > self._acted_at or self._too_old(latest[0], settings):
                    self._next = time.monotonic() + settings.rounds.every_s
                    self._round(settings, *latest)
                    self._well()
            except BrokenPipeError:
                return  # the daemon is gone, and with it this process
            except (NotNow, StoreError, RowError) as error:
                self._disconnect()
                self._tell(str(error))
            except Exception as error:  # this thread must live as long as its process
                log.exception("a round failed")
                self._disconnect()
                self._tell(f"{type(error).__name__}: {error}; the daemon's log has the traceback")

    # What keeps it from working, told once.

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._send(frames.Failed("rounds", problem))

    def _well(self) -> None:
        if self._problem is not None:
            self._problem = None
            self._send(frames.Recovered("rounds"))

    @staticmethod
    def _too_old(state: ClusterState, settings: Settings) -> bool:
        slurm = settings.slurm
        return time.time() - state.taken_at > min(slurm.stale_after_s, 2 * slurm.poll_s + slurm.timeout_s)

    # One round.

    def _round(self, settings: Settings, state: ClusterState, snapshot: Snapshot) -> None:
        began = time.time()
        if Path(settings.paths.disable).exists():
            raise NotNow(f"{settings.paths.disable} is there")
        if self._too_old(state, settings):
            raise NotNow("the last good poll of Slurm is too old")
        self._follow(settings, snapshot)
        db = self._connect(settings)
        jobs = self._movable(db, settings, state, snapshot, began)
        counts: Counter[str] = Counter()
        problem = ""
        if jobs and self._policy is not None:
            slurm = SlurmCommand(settings.slurm.command, settings.slurm.timeout_s)
            for proposal in look(state, snapshot, jobs, self._policy, settings, began):
                if proposal.mode == "enforce" and Path(settings.paths.disable).exists():
                    break
                result = self._carry_out(db, slurm, proposal, state.cluster, began)
                counts[result.outcome] += 1
                if not result.told:
                    problem = result.said or ""
                    break
        outcomes = {"place": dict(counts)} if counts else {}
        self._send(frames.Rounded(began, time.time() - began, len(jobs), outcomes))
        if problem:
            raise NotNow(problem)

    def _follow(self, settings: Settings, snapshot: Snapshot) -> None:
        """The policy in force, by the settings in force."""
        if settings is not self._made_for or self._policy is None:
            self._policy, _ = policy_in_force(settings)  # why a model is refused, the daemon tells
            self._processors = processors.load(settings.processors)
            self._made_for = settings
        if isinstance(self._policy, Guarded):
            self._policy.observe(snapshot)

    def _movable(
        self, db: Database, settings: Settings, state: ClusterState, snapshot: Snapshot, now: float
    ) -> dict[int, Movable]:
        waiting = [(job, token) for job in state.jobs if job.pending and (token := token_in(job.admin_comment))]
        waiting.sort(key=lambda each: (-each[0].priority, each[0].submit_time))
        del waiting[settings.rounds.most_jobs :]
        self._remember(db, {token for _, token in waiting})
        begun = _begun(state.jobs)
        listed: dict[int, list[PartitionLimits]] = {}
        found: dict[int, Movable] = {}
        for job, token in waiting:
            mine = self._known.get(token)
            if mine is None or stays(mine, job, begun):
                continue
            uid = mine.request.uid
            if uid not in listed:
                listed[uid] = rights.part_list(snapshot, mine.request.user, uid)
            mode = mode_now(mine, settings, listed[uid])
            if mode == "off":
                continue
            may = movable(job, mine, mode, snapshot, listed[uid], settings, self._processors, now)
            if isinstance(may, Movable):
                found[job.job_id] = may
        return found

    def _remember(self, db: Database, tokens: set[str]) -> None:
        """Reads of the log what is not known of these jobs; what is not there yet is looked for again."""
        self._known = {token: mine for token, mine in self._known.items() if token in tokens}
        new = sorted(tokens - self._known.keys())
        past = moves.by_tokens(db, new)
        for row in decisions.by_tokens(db, new):
            try:
                self._known[row.token] = known(row, past.get(row.token, ()))
            except (msgspec.ValidationError, KeyError, TypeError) as error:
                log.warning("decision %s cannot be read, its job is not moved: %s", row.token, error)

    def _carry_out(
        self, db: Database, slurm: SlurmCommand, proposal: Proposal, cluster: str, began: float
    ) -> acting.Result:
        only_thought_of = proposal.mode != "enforce"
        row = MoveRow(
            round=began,
            moved_at=time.time(),
            cluster=cluster,
            job_id=proposal.job_id,
            token=proposal.known.token,
            lever="place",
            mode=proposal.mode,
            from_place=proposal.known.place,
            to_place=proposal.to_place,
            before=proposal.before,
            after=proposal.after,
            gain_s=proposal.gain_s,
            why=proposal.why,
            outcome=moves.WOULD if only_thought_of else moves.SENT,
        )
        number = moves.add(db, row)
        result = acting.Result(moves.WOULD)
        if not only_thought_of:
            result = acting.move(slurm, proposal.job_id, proposal.before, proposal.after)
            self._acted_at = time.time()
            moves.settle(db, number, result.outcome, result.said)
            log.info("%s: %s%s", said_in_short(proposal), result.outcome, f" ({result.said})" if result.said else "")
        row = msgspec.structs.replace(row, outcome=result.outcome)
        self._known[row.token] = after(proposal.known, row)
        return result

    def _connect(self, settings: Settings) -> Database:
        if self._db is not None and (str(self._db.path) != settings.paths.database or not self._db.same_file()):
            self._disconnect()
        if self._db is None:
            self._db = Database(settings.paths.database)
            self._known.clear()  # it may be another file than before
        return self._db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _begun(jobs: Iterable[Job]) -> frozenset[int]:
    """Arrays of which a task runs."""
    return frozenset(job.array_job_id for job in jobs if job.running and job.array_job_id is not None)
