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
from advisor.performance import processors
from advisor.performance.snapshot import Snapshot
from advisor.policy.guarded import Guarded
from advisor.policy.interface import Policy
from advisor.policy.remembered import Remembered
from advisor.protocol import PartitionLimits
from advisor.server import frames, rights
from advisor.server.rounds import acting
from advisor.server.rounds.known import Known, after, known, mode_now, stays
from advisor.server.rounds.looking import look
from advisor.server.rounds.places import Movable, Proposal, movable
from advisor.server.rounds.planning import Planner
from advisor.server.rounds.requeueing import Runs, may_restart
from advisor.settings import Processor, Settings
from advisor.store import decisions, moves
from advisor.store.database import Database, RowError, StoreError
from advisor.store.moves import MoveRow
from advisor.store.outcomes import token_in
from advisor.training.serving import policy_in_force

log = logging.getLogger(__name__)

# A queue that has not changed is not looked at again before this: expected ends shift a little all the time.
_LOOK_ANYWAY_S = 300.0

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
        self._submitted: Remembered | None = None
        self._planner = Planner()
        self._processors: dict[str, Processor] = {}
        self._known: dict[str, Known] = {}
        self._db: Database | None = None
        self._problem: str | None = None
        self._quiet: tuple[int, float] | None = None  # a queue in which nothing was to be done, and when that was seen
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

    def submitted(self, remembered: Remembered) -> None:
        """What the daemon has seen submitted, which the learned policy goes by; here come no submissions."""
        with self._lock:
            self._submitted = remembered

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
        jobs, running = self._open_jobs(db, settings, state, snapshot, began)
        counts: dict[str, Counter[str]] = {}
        problem = ""
        picture = _picture(state, settings)
        if self._quiet is not None and (self._quiet[0] != picture or began - self._quiet[1] > _LOOK_ANYWAY_S):
            self._quiet = None
        if (jobs or running) and self._policy is not None and self._quiet is None:
            slurm = SlurmCommand(settings.slurm.command, settings.slurm.timeout_s)
            for each in look(state, snapshot, jobs, self._policy, settings, began, self._planner, running):
                if each.mode == "enforce" and Path(settings.paths.disable).exists():
                    break
                result = self._carry_out(db, slurm, each, state.cluster, began)
                counts.setdefault(each.lever, Counter())[result.outcome] += 1
                if not result.told:
                    problem = result.said or ""
                    break
            settled = len(jobs) < 2 or self._planner.ready() or bool(self._planner.missing)
            if not counts and settled and not any(job.resting for job in jobs.values()):
                self._quiet = (picture, began)
        outcomes = {lever: dict(count) for lever, count in counts.items()}
        self._send(frames.Rounded(began, time.time() - began, len(jobs), outcomes))
        if not problem and "order" in settings.levers and self._planner.missing:
            problem = f"no turns are exchanged: {self._planner.missing}"
        if problem:
            raise NotNow(problem)

    def _follow(self, settings: Settings, snapshot: Snapshot) -> None:
        """The policy in force, by the settings in force."""
        if settings is not self._made_for or self._policy is None:
            self._policy, _ = policy_in_force(settings)  # why a model is refused, the daemon tells
            self._processors = processors.load(settings.processors)
            self._made_for = settings
        if isinstance(self._policy, Guarded):
            with self._lock:
                submitted = self._submitted
            if submitted is not None:
                self._policy.recall(submitted)
            self._policy.observe(snapshot)

    def _open_jobs(
        self, db: Database, settings: Settings, state: ClusterState, snapshot: Snapshot, now: float
    ) -> tuple[dict[int, Movable], list[Runs]]:
        """The jobs with which something may be done: those that wait, and those that run and may be requeued."""
        ours = [(job, token) for job in state.jobs if (token := token_in(job.admin_comment))]
        waiting = [each for each in ours if each[0].pending]
        waiting.sort(key=lambda each: (-each[0].priority, each[0].submit_time))
        del waiting[settings.rounds.most_jobs :]
        running = [each for each in ours if each[0].running] if "requeue" in settings.levers else []
        self._remember(db, {token for _, token in (*waiting, *running)})
        begun = _begun(state.jobs)
        listed: dict[int, list[PartitionLimits]] = {}
        found: dict[int, Movable] = {}
        restartable: list[Runs] = []
        for job, token in (*waiting, *running):
            mine = self._known.get(token)
            if mine is None or (job.pending and stays(mine, job, begun)):
                continue
            uid = mine.request.uid
            if uid not in listed:
                listed[uid] = rights.part_list(snapshot, mine.request.user, uid)
            mode = mode_now(mine, settings, listed[uid])
            if mode == "off":
                continue
            if job.running:
                runs = may_restart(job, mine, mode, snapshot, listed[uid], settings, self._processors, now)
                restartable += [runs] if runs is not None else []
                continue
            may = movable(job, mine, mode, snapshot, listed[uid], settings, self._processors, now)
            if isinstance(may, Movable):
                found[job.job_id] = may
        return found, restartable

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
        self, db: Database, slurm: SlurmCommand, each: Proposal, cluster: str, began: float
    ) -> acting.Result:
        row = MoveRow(
            round=began,
            moved_at=time.time(),
            cluster=cluster,
            job_id=each.job_id,
            token=each.known.token,
            lever=each.lever,
            mode=each.mode,
            from_place=each.from_place,
            to_place=each.to_place,
            before=each.before,
            after=each.after,
            gain_s=each.gain_s,
            why=each.why,
            outcome=moves.SENT if each.mode == "enforce" else moves.WOULD,
        )
        number = moves.add(db, row)
        result = acting.Result(moves.WOULD)
        if each.mode == "enforce":
            result = acting.carry_out(slurm, each)
            self._acted_at = time.time()
            moves.settle(db, number, result.outcome, result.said)
            said = f" ({result.said})" if result.said else ""
            log.info("job %d: %s → %s: %s%s", each.job_id, each.from_place, each.to_place, result.outcome, said)
        row = msgspec.structs.replace(row, outcome=result.outcome)
        self._known[row.token] = after(self._known.get(row.token, each.known), row)
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


def _picture(state: ClusterState, settings: Settings) -> int:
    """What a look goes by, as far as it does not change by itself: who runs and waits where, and on which nodes."""
    jobs = tuple((job.job_id, job.states[:1], job.partitions, job.nodes, job.priority > 0) for job in state.jobs)
    return hash((id(settings), jobs, tuple(node.name for node in state.nodes if node.usable)))
