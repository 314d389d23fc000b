"""`advisor retrain`: from the log to a new version that is judged before it decides anything.

Works in stages on a consistent copy of the log: copy, fit, evidence, simulation, latency, version, gate. What a stage
found is kept in a work folder until the end, so that a run that was killed goes on where it was (`resume`). The same
log and the same seed give the same weights.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from advisor import __version__
from advisor.performance import processors as table_of_processors
from advisor.performance.model.files import decode
from advisor.performance.model.model import RunTimeModel
from advisor.performance.model.observations import Refused, observe
from advisor.performance.model.table import table
from advisor.performance.told import decode as decode_told
from advisor.performance.wait_model import corrections
from advisor.performance.wait_model import decode as decode_waits
from advisor.settings import Settings
from advisor.store import learning
from advisor.store.copies import Copied, copy_log, merge
from advisor.store.database import Database, StoreError
from advisor.store.experience import Experience, experiences
from advisor.training import serving
from advisor.training.calibrated import Site, read_site
from advisor.training.contended import Contention, fit_contention
from advisor.training.crew import Crew
from advisor.training.evidence import Evidence, EvidenceError, gather
from advisor.training.gate import Judgement, Latency, Predictions, Simulated, judge
from advisor.training.latency import measure
from advisor.training.policy_stage import PolicyStage, tune_policy
from advisor.training.refit import Fitted, History, Span, fit, span
from advisor.training.rescore import Rescorer
from advisor.training.versions import Promotion, Version, VersionError, Versions

Say = Callable[[str], None]
Stage = TypeVar("Stage", bound=msgspec.Struct)

# Decisions before this many last ones say little about the site as it is now.
MOST_DECISIONS = 200_000
_WORK = ".retrain"


class RetrainError(Exception):
    """There is nothing to retrain from, or it cannot be kept; the text says why and what to do."""


class Started(msgspec.Struct, frozen=True):
    """What a run was asked for; another question does not go on with its work."""

    logs: tuple[str, ...]
    seed: int
    name: str
    at: float
    cluster: str | None


class Sources(msgspec.Struct, frozen=True):
    """The logs as they were copied."""

    logs: tuple[Copied, ...]
    cluster: str
    twice: dict[str, int] = {}


class Models(msgspec.Struct, frozen=True):
    """What was fitted, in words and numbers."""

    runs: int
    apps: int
    refused: dict[str, int]
    wait_records: int
    ended_until: int
    decided_until: float
    contention: Contention


class Judged(msgspec.Struct, frozen=True):
    """What the version was judged by."""

    evidence: Evidence | None
    no_evidence: str
    predictions: Predictions | None


class Retrained(msgspec.Struct, frozen=True):
    """What a run came to."""

    version: str
    path: str
    promoted: bool
    before: str | None
    judgement: Judgement
    sources: Sources
    models: Models
    judged: Judged
    simulated: Simulated | None
    latency: Latency | None
    policy: PolicyStage
    took_s: float


def retrain(
    settings: Settings,
    logs: Sequence[Path] = (),
    *,
    seed: int = 0,
    resume: bool = False,
    promote: bool = True,
    cluster: str | None = None,
    now: float | None = None,
    say: Say = lambda _: None,
    crew: Crew | None = None,
) -> Retrained:
    """Retrains from these logs (default: the site's own); raises `RetrainError`. `crew`: other ranks that take part."""
    began = time.monotonic()
    try:
        with _alone(Versions.of(settings).models):
            run = _Run(
                settings, logs or [Path(settings.paths.database)], seed, resume, cluster, now, say, crew or Crew()
            )
            return run.go(promote, began)
    except (StoreError, VersionError) as error:
        raise RetrainError(str(error)) from error


@contextlib.contextmanager
def _alone(models: Path) -> Iterator[None]:
    """Two at once, the timer's and one by hand, would go on with each other's work. The lock ends with its process."""
    try:
        models.mkdir(parents=True, exist_ok=True)
        with (models / ".retrain.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError:
        raise RetrainError(f"another retrain is at work in {models}; wait until it has ended") from None
    except OSError as error:
        raise RetrainError(f"{models}: {error.strerror or error}; check that it may be written") from error


class _Run:
    """One run and its work folder."""

    def __init__(
        self,
        settings: Settings,
        logs: Sequence[Path],
        seed: int,
        resume: bool,
        cluster: str | None,
        now: float | None,
        say: Say,
        crew: Crew,
    ) -> None:
        self.settings, self.seed, self.say, self.crew = settings, seed, say, crew or Crew()
        self.versions = Versions.of(settings)
        self.folder = self.versions.models / _WORK
        self.now = time.time() if now is None else now
        asked = Started(tuple(str(log.absolute()) for log in logs), seed, self._name(), self.now, cluster)
        before = self._read("started", Started)
        same = before is not None and (before.logs, before.seed, before.cluster) == (asked.logs, seed, cluster)
        if resume and before is not None and same:
            self.started = before
            self.now = before.at
            say(f"going on with {before.name}")
            return
        if resume and before is not None:
            raise RetrainError(
                "the run that was interrupted had other logs or another seed; repeat it so, or go without --resume"
            )
        try:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise RetrainError(f"{self.folder}: {error.strerror or error}; check that it may be written") from error
        self.started = asked
        self._keep("started", asked)

    def go(self, promote: bool, began: float) -> Retrained:
        sources = self._stage("sources", Sources, self._copied)
        with Database(self.folder / "log.db") as db:
            models = self._stage("models", Models, lambda: self._fitted(db, sources))
            rows = self._rows(db, sources.cluster)
            site = read_site(db, sources.cluster)
            new = self._history()
            current = self._current()
            judged = self._stage("judged", Judged, lambda: self._judged(rows))
            simulated = None
            if site is not None:
                simulated = self._stage("simulated", Simulated, lambda: self._simulated(db, site, new, current))
        policy = self._stage("policy", PolicyStage, lambda: self._policy(site, new))
        latency = None if site is None else self._stage("latency", Latency, lambda: self._latency(site, new))
        version = self._written(sources, models, judged, simulated, latency, policy)
        judgement = judge(
            self.settings.gate, judged.evidence, judged.predictions, simulated, latency, judged.no_evidence
        )
        self.versions.add_to_card(version.name, {"gate": msgspec.to_builtins(judgement)})
        promotion: Promotion | None = None
        if judgement.passed and promote:
            promotion = self.versions.promote(version.name, "the gate passed it")
        shutil.rmtree(self.folder, ignore_errors=True)
        return Retrained(
            version.name,
            str(version.path),
            promotion is not None,
            current.name if current is not None else None,
            judgement,
            sources,
            models,
            judged,
            simulated,
            latency,
            policy,
            round(time.monotonic() - began, 3),
        )

    def _name(self) -> str:
        name = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self.now))
        taken = {found for found, _ in self.versions.names()}
        number = 1
        while (made := name if number == 1 else f"{name}-{number}") in taken:
            number += 1
        return made

    def _copied(self) -> Sources:
        copies, told = [], []
        for number, log in enumerate(self.started.logs):
            self.say(f"copying {log}")
            target = self.folder / ("log.db" if number == 0 else f"log{number}.db")
            told.append(copy_log(Path(log), target, self.now))
            copies.append(target)
        twice = merge(copies[0], copies[1:])
        cluster = self.started.cluster or told[0].clusters[0]
        if not any(cluster in copied.clusters for copied in told):
            known = ", ".join(sorted({name for copied in told for name in copied.clusters}))
            raise RetrainError(f"no log has jobs of a cluster {cluster!r}; there are jobs of {known}")
        return Sources(tuple(told), cluster, twice)

    def _fitted(self, db: Database, sources: Sources) -> Models:
        found: Fitted = fit(db, self.settings, self.say)
        for name, content in found.files().items():
            (self.folder / name).write_bytes(content)
        (self.folder / "unseen.msgpack").write_bytes(msgspec.msgpack.encode(found.unseen))
        self.say("fitting contention")
        site = read_site(db, sources.cluster)
        sizes = {} if site is None else {node.name: (node.cpus, node.gpus) for node in site.cluster.nodes}
        contention, content = fit_contention(db, sizes)
        (self.folder / serving.CONTENTION).write_bytes(content)
        return Models(
            found.runs,
            len(list(found.run_times.apps())),
            found.refused,
            found.wait_records,
            found.ended_until,
            found.decided_until,
            contention,
        )

    def _rows(self, db: Database, cluster: str) -> list[Experience]:
        """The site's own decisions: what another cluster did says nothing about this one's queue."""
        count = db.rows("SELECT count(*) FROM decisions WHERE eligible")[0][0]
        after = 0.0
        if count > MOST_DECISIONS:
            after = db.rows(
                "SELECT decided_at FROM decisions WHERE eligible ORDER BY decided_at DESC LIMIT 1 OFFSET ?",
                (MOST_DECISIONS,),
            )[0][0]
        return [row for row in experiences(db, after) if row.cluster in (cluster, "")]

    def _judged(self, rows: list[Experience]) -> Judged:
        self.say(f"weighing {len(rows)} logged decisions")
        unseen = msgspec.msgpack.decode((self.folder / "unseen.msgpack").read_bytes(), type=list[History])
        waits = corrections(decode_waits((self.folder / serving.WAITS).read_bytes()))
        told = decode_told((self.folder / serving.TOLD).read_bytes(), serving.TOLD)
        rescorer = Rescorer(unseen, waits, self.settings, told)
        evidence, why = None, ""
        try:
            evidence = gather(rows, rescorer, self.settings.gate.least_jobs)
        except EvidenceError as error:
            why = str(error)
        return Judged(evidence, why, rescorer.predictions(rows))

    def _current(self) -> Version | None:
        try:
            return self.versions.current()
        except VersionError as error:
            self.say(f"the version in force cannot be compared with: {error}")
            return None

    def _model(self) -> RunTimeModel:
        content = (self.folder / serving.RUN_TIMES).read_bytes()
        return decode(content, table_of_processors.load(self.settings.processors))

    def _history(self) -> History:
        return table(self._model(), {"cpu"})

    def _simulated(self, db: Database, site: Site, new: History, current: Version | None) -> Simulated:
        self.say(f"simulating this site ({len(site.cluster.nodes)} nodes, {len(site.jobs)} jobs)")
        old = new if current is None else in_force(db, current, self.settings, span(db))
        return self.crew.simulate(site, new, new, old, self.settings, self.seed)

    def _policy(self, site: Site | None, new: History) -> PolicyStage:
        stage, content = tune_policy(site, new, self.versions, self.settings, self.seed, self.say, self.crew.tune)
        if content is not None:
            (self.folder / serving.POLICY).write_bytes(content)
        return stage

    def _latency(self, site: Site, new: History) -> Latency:
        policy, _ = serving.policy_in_force(self.settings)
        return measure(site, policy, new, self.settings)

    def _written(
        self,
        sources: Sources,
        models: Models,
        judged: Judged,
        simulated: Simulated | None,
        latency: Latency | None,
        policy: PolicyStage,
    ) -> Version:
        name = self.started.name
        if (self.versions.models / name).exists():  # a run that was killed between this and its end
            return self.versions.load(name)
        files = {
            file: (self.folder / file).read_bytes()
            for file in (serving.RUN_TIMES, serving.WAITS, serving.TOLD, serving.CONTENTION, serving.POLICY)
            if (self.folder / file).exists()
        }
        card: dict[str, Any] = {
            "version": name,
            "made": {"by": f"slurm-advisor {__version__}", "seed": self.seed, "from": msgspec.to_builtins(sources)},
            "models": msgspec.to_builtins(models),
            "policy": msgspec.to_builtins(policy),
            "log": msgspec.to_builtins(judged),
            "simulation": msgspec.to_builtins(simulated),
            "latency": msgspec.to_builtins(latency),
        }
        return self.versions.write(
            name,
            files,
            card,
            created_at=self.started.at,
            cluster=sources.cluster,
            policy=self.settings.policy.name,
            ended_until=models.ended_until,
            decided_until=models.decided_until,
        )

    def _stage(self, name: str, kind: type[Stage], work: Callable[[], Stage]) -> Stage:
        """What the stage found, now or before the run was interrupted."""
        found = self._read(name, kind)
        if found is None:
            found = work()
            self._keep(name, found)
        return found

    def _read(self, name: str, kind: type[Stage]) -> Stage | None:
        try:
            return msgspec.msgpack.decode((self.folder / f"{name}.done").read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            return None

    def _keep(self, name: str, found: msgspec.Struct) -> None:
        part = self.folder / f".{name}.part"
        part.write_bytes(msgspec.msgpack.encode(found))
        part.replace(self.folder / f"{name}.done")


def in_force(db: Database, version: Version, settings: Settings, reach: Span) -> History:
    """The run times that the daemon decides by: those of the version, brought up to date with what ended since."""
    model = serving.run_times(version, settings)
    if model is None:
        return {}
    for record in learning.run_records(db, version.manifest.ended_until, reach.ended_until):
        try:
            model.update(observe(**record._asdict()))
        except Refused:
            continue
    return table(model, {"cpu"})
