"""The collector's dealings with the database, in a thread of its own: outcomes, job ids, lost decisions, history.

A database that is locked or broken delays this thread and nothing else. What could not be done is told to the
daemon and tried again; nothing that was seen is forgotten in between.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from advisor.cluster.command import SlurmCommand
from advisor.cluster.types import ClusterState, Job, SourceError
from advisor.performance.told import Told
from advisor.server import frames
from advisor.server.learner import History, Learner, RunningJob, Waits
from advisor.server.sharing import Sharing
from advisor.settings import Settings
from advisor.store import learning, outcomes
from advisor.store.database import Database, StoreError
from advisor.telemetry import sacct

log = logging.getLogger(__name__)

Send = Callable[[frames.FromCollector], None]

_CHUNK = 500  # apps in one frame, tokens in one query
_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 30.0
_HISTORY_S = 30.0  # at most this often, and more seldom where it takes long
_SACCT_TIMEOUT_S = 300.0  # a month of a busy site's accounting


class Bookkeeper:
    """Works off what the polls have seen, at its own pace."""

    def __init__(self, send: Send) -> None:
        self.history: History = {}
        self.waits: Waits = {}
        self.told: Told | None = None
        self.sharing = Sharing()
        self._learner = Learner()
        self._running: list[RunningJob] = []
        self._send = send
        self._history_sent: tuple[History, Waits, Told | None] | None = None
        self._settings: Settings | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._unmapped: dict[tuple[str, int, str], float] = {}  # cluster, job id, token → when it was seen
        self._unchecked: dict[str, float] = {}  # token → when it was seen
        self._known: set[str] = set()  # tokens of live jobs that are in the database
        self._gpu_types: dict[str, str] = {}  # node → GPU type, where accounting does not tell it
        self._drained_at = 0.0
        self._db: Database | None = None
        self._next_collect = 0.0
        self._next_history = self._history_rest = 0.0
        self._history_until = 0  # the latest end in the log when the history was made
        self._loaded_for: Settings | None = None
        self._lost: int | None = None
        self._failing: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="bookkeeper", daemon=True)
        self._thread.start()

    def configure(self, settings: Settings) -> None:
        """Works with these settings from now on."""
        with self._lock:
            self._settings = settings
            self._next_collect = self._next_history = 0.0
        self._wake.set()

    def drained(self, at: float) -> None:
        """The daemon's log has written every decision made before `at`."""
        with self._lock:
            self._drained_at = at
            due = any(seen_at < at for seen_at in self._unchecked.values())
        if due:
            self._wake.set()

    def seen(self, state: ClusterState, at: float) -> None:
        """Takes note of the tokens on the jobs that Slurm shows."""
        self._gpu_types = {
            node.name: gres.type for node in state.nodes for gres in node.gres if gres.name == "gpu" and gres.type
        }
        self._running = [
            RunningJob(job.name, job.user, _processor(job, self._gpu_types), _gpus(job), job.cpus, at - job.start_time)
            for job in state.jobs
            if job.running and job.nodes and job.name and job.start_time is not None
        ]
        live: dict[str, Job] = {}
        for job in state.jobs:
            token = outcomes.token_in(job.admin_comment)
            if token is not None:
                live.setdefault(token, job)
        with self._lock:
            self._known &= live.keys()
            for token, job in live.items():
                if token not in self._known:
                    job_id = job.array_job_id or job.job_id
                    self._unmapped.setdefault((state.cluster, job_id, token), at)
                    self._unchecked.setdefault(token, at)
            work = bool(self._unmapped)
        if work:
            self._wake.set()

    def send_history(self) -> None:
        """Sends the past run times, and how waits are off, if they are others than the daemon has."""
        history, waits, told = self.history, self.waits, self.told
        sent = self._history_sent
        if sent is not None and history is sent[0] and waits is sent[1] and told is sent[2]:
            return
        apps = list(history)
        for start in range(0, max(1, len(apps)), _CHUNK):
            part = {app: history[app] for app in apps[start : start + _CHUNK]}
            self._send(frames.History(part, start + _CHUNK >= len(apps), waits, told))
        self._history_sent = (history, waits, told)

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            self._wake.wait(timeout=1.0)
            self._wake.clear()
            with self._lock:
                settings = self._settings
            if settings is None:
                continue
            try:
                done = self._work(settings)
            except BrokenPipeError:
                return  # the daemon is gone, and with it this process
            if done:
                retry_s = _FIRST_RETRY_S
            else:
                time.sleep(retry_s)
                retry_s = min(_LONGEST_RETRY_S, retry_s * 2)

    def _work(self, settings: Settings) -> bool:
        """Does whatever is due; false when something failed and is to be tried again soon."""
        tasks: tuple[tuple[str, Callable[[Database, Settings], None]], ...] = (
            ("tokens", self._map_tokens),
            ("lost", self._note_lost),
            ("history", self._load_history),
            ("collect", self._collect),
            ("slowdowns", self.sharing.learn),
        )
        for what, task in tasks:
            if what == "collect" and time.monotonic() < self._next_collect:
                continue  # nor has it worked again, where it failed before
            try:
                task(self._connect(settings), settings)
            except BrokenPipeError:
                raise
            except SourceError as error:  # accounting is away, or the site has none: the books go on without it
                self._next_collect = time.monotonic() + settings.log.collect_s
                self._fail(what, str(error))
                continue
            except StoreError as error:
                self._fail(what, str(error))
                return False
            except Exception as error:  # this thread must live as long as its process
                log.exception("the collector's thread failed")
                self._fail(what, f"{type(error).__name__}: {error}; the daemon's log has the traceback")
                return False
            if what in self._failing:
                self._failing.discard(what)
                self._send(frames.Recovered(what))
        return True

    def _fail(self, what: str, error: str) -> None:
        self._failing.add(what)
        self._disconnect()
        self._send(frames.Failed(what, error))

    def _connect(self, settings: Settings) -> Database:
        if self._db is not None and (str(self._db.path) != settings.paths.database or not self._db.same_file()):
            self._disconnect()
        if self._db is None:
            self._db = Database(settings.paths.database)
            with self._lock:
                self._known.clear()  # it may be another file than before
            self._lost = None
        return self._db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _map_tokens(self, db: Database, settings: Settings) -> None:
        with self._lock:
            pairs = dict(self._unmapped)
        if not pairs:
            return
        outcomes.map_tokens(
            db,
            [
                outcomes.LiveJob(cluster, job_id, f"advisor={token}", seen_at)
                for (cluster, job_id, token), seen_at in pairs.items()
            ],
        )
        with self._lock:
            for key in pairs:
                self._unmapped.pop(key, None)
                self._known.add(key[2])

    def _note_lost(self, db: Database, settings: Settings) -> None:
        """Tokens on jobs whose decision is not in the log, although the log has been written out since."""
        with self._lock:
            drained_at = self._drained_at
            due = [token for token, seen_at in self._unchecked.items() if seen_at < drained_at]
        missing = False
        for start in range(0, len(due), _CHUNK):
            part = tuple(due[start : start + _CHUNK])
            marks = ", ".join("?" * len(part))
            found = db.rows(f"SELECT count(*) FROM decisions WHERE token IN ({marks})", part)
            missing = missing or found[0][0] < len(part)
        if missing:
            outcomes.note_lost_tokens(db, before=drained_at, now=time.time())
        with self._lock:
            for token in due:
                self._unchecked.pop(token, None)
        if missing or self._lost is None:
            self._tell_lost(db)

    def _tell_lost(self, db: Database) -> None:
        self._lost = outcomes.lost_decisions(db)
        self._send(frames.Lost(self._lost))

    def _load_history(self, db: Database, settings: Settings) -> None:
        started, before = time.monotonic(), time.thread_time()
        # Other settings, also those that came while the last reading was under way, are a reason to look again; so are
        # jobs that have ended, after a pause that leaves this process to other work.
        ended = learning.ended_until(db)
        more = ended != self._history_until and started >= self._history_rest
        if started < self._next_history and settings is self._loaded_for and not more:
            return
        # The first time takes long for reasons of its own (imports, a whole log), and tells nothing of the next.
        rest = 20 if self._loaded_for is not None else 1
        self._loaded_for, self._history_until = settings, ended
        site = {"cpu", *self._gpu_types.values()}
        history, waits = self._learner.history(db, settings, site, self._running), self._learner.waits(db)
        if history != self.history:
            self.history = history
        if waits != self.waits:
            self.waits = waits
        told = self._learner.told()
        if told != self.told:
            self.told = told
        # By the work it was: on a busy machine it takes long without being much.
        took_s = time.thread_time() - before
        self._history_rest = time.monotonic() + rest * took_s
        self._next_history = max(time.monotonic() + _HISTORY_S, self._history_rest)

    def _collect(self, db: Database, settings: Settings) -> None:
        if settings.slurm.source != "recorded":  # a recording has no accounting
            slurm = SlurmCommand(settings.slurm.command, max(settings.slurm.timeout_s, _SACCT_TIMEOUT_S))
            now = time.time()
            since = now - settings.log.since_days * 86400
            sacct.collect(db, slurm.run, since, now, self._gpu_types)
        self._next_collect = time.monotonic() + settings.log.collect_s
        self._send(frames.Collected(time.time()))
        self._tell_lost(db)


def _gpus(job: Job) -> int:
    return sum(gres.count for gres in job.gres if gres.name == "gpu")


def _processor(job: Job, gpu_types: dict[str, str]) -> str:
    """As accounting will name it once the job has ended."""
    if not _gpus(job):
        return "cpu"
    types = {gres.type for gres in job.gres if gres.name == "gpu" and gres.type}
    types = types or {gpu_types[node] for node in job.nodes if node in gpu_types}
    return "+".join(sorted(types)) or "gpu"
