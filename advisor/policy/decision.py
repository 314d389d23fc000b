"""One submission in, one decision out: the hot path, without I/O.

The daemon, the dry run and the simulator all call `decide`; apart from the ledger it books on and the random
generator it draws from, it depends on nothing but its arguments. When anything is doubtful, the answer is keep.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from advisor.performance import processors as table
from advisor.performance.snapshot import Snapshot
from advisor.performance.waits import Ledger
from advisor.policy import messages
from advisor.policy.candidates import Choice
from advisor.policy.eligibility import named_partitions
from advisor.policy.exploration import Explorer, Probabilities, explore
from advisor.policy.guardrails import Draw, draw, prefer, resolve_mode
from advisor.policy.interface import Candidate, Decision, JobShape, Policy, Prediction, Scored, score
from advisor.policy.plans import NOTHING_READ, Plans, plan, read
from advisor.policy.probes import Probes
from advisor.policy.words import duration
from advisor.policy.workflow import ALONE, Workflows
from advisor.policy.workflow_placing import placed
from advisor.protocol import VERSION, Reply, SubmitRequest
from advisor.settings import Mode, Processor, Settings

# Candidates beyond the best few are logged with their predictions, but not with features of their own.
MAX_FEATURED = 8


class Verdict(msgspec.Struct, frozen=True):
    """What the hook has to know at once. `complete` works out the rest, books the job, and gives the whole decision.

    It must be called once, before the next submission is considered, which must find this one on the ledger.
    """

    token: str
    mode: Mode
    applied: bool
    set: dict[str, str]
    message: str | None
    complete: Callable[[], Decision]
    fell_back: str = ""  # in a word or two, why the policy left it to another
    # Books it on another ledger as well, for what may come after it; nothing else is done.
    foresee: Callable[[Ledger], None] = lambda ledger: None
    to_learn: bool = False  # it is sent where something is learned from it, which no other of its app is to do as well

    def reply(self) -> Reply:
        """What is told to the hook."""
        return Reply(
            v=VERSION,
            token=None if self.mode == "off" else self.token,
            action="rewrite" if self.applied else "keep",
            set=self.set if self.applied else {},
            message=self.message,
        )


class Site(msgspec.Struct, frozen=True):
    """What a submission is considered with, other than the cluster and the clock."""

    policy: Policy
    settings: Settings
    rng: random.Random
    new_token: Callable[[], str]
    processors: Mapping[str, Processor] | None = None
    plans: Plans | None = None
    explorer: Explorer = explore
    workflows: Workflows | None = None
    probes: Probes | None = None  # jobs that are learning already; None: nobody remembers them


def decide(
    request: SubmitRequest,
    snapshot: Snapshot | None,
    ledger: Ledger | None,
    policy: Policy,
    settings: Settings,
    rng: random.Random,
    now: float,
    new_token: Callable[[], str],
    processors: Mapping[str, Processor] | None = None,
    explorer: Explorer = explore,
    workflows: Workflows | None = None,
) -> Decision:
    """Decides one submission. Books it on the ledger unless it is a dry run (`op: advise`)."""
    return consider(
        request, snapshot, ledger, policy, settings, rng, now, new_token, processors, None, explorer, workflows
    ).complete()


def consider(
    request: SubmitRequest,
    snapshot: Snapshot | None,
    ledger: Ledger | None,
    policy: Policy,
    settings: Settings,
    rng: random.Random,
    now: float,
    new_token: Callable[[], str],
    processors: Mapping[str, Processor] | None = None,
    plans: Plans | None = None,
    explorer: Explorer = explore,
    workflows: Workflows | None = None,
) -> Verdict:
    """As `decide`, but what slurmctld need not wait for is left to the verdict's `complete`."""
    site = Site(policy, settings, rng, new_token, processors, plans, explorer, workflows)
    return consider_at(site, request, snapshot, ledger, now)


def consider_at(
    site: Site,
    request: SubmitRequest,
    snapshot: Snapshot | None,
    ledger: Ledger | None,
    now: float,
    branch: Ledger | None = None,
) -> Verdict:
    """As `consider`. With a `branch` of the ledger it is considered as if what is booked there were on the ledger."""
    case = Case(request, snapshot, site, now)
    case.belong()
    choice = case.choice
    if choice is None or snapshot is None:
        return case.verdict(None, None, None)
    seen = branch or ledger
    view = seen.over(snapshot) if seen is not None else snapshot
    return case.verdict(score(site.policy, choice.shape, choice.candidates, view, now), view, ledger)


class Case:
    """One submission on its way to a decision. Made of what it says and of the cluster, not of those before it."""

    __slots__ = (
        "_alone", "_candidates", "belonging", "choice", "explorer", "mode", "now", "reading", "request", "site",
        "snapshot", "spare_s", "token", "workflows",
    )  # fmt: skip

    def __init__(self, request: SubmitRequest, snapshot: Snapshot | None, site: Site, now: float) -> None:
        settings, plans = site.settings, site.plans
        self.request, self.snapshot, self.site, self.now = request, snapshot, site, now
        self.token = ""
        self.mode = resolve_mode(
            settings.modes, request, named_partitions(request) if settings.modes.partitions else ()
        )
        self.reading = NOTHING_READ
        # None: nothing may be risked in order to learn, nothing is to be remembered.
        self.explorer = site.explorer if settings.explore.max_regret > 0 else None
        self.workflows = site.workflows if request.op == "submit" else None
        self.belonging, self.spare_s = ALONE, 0.0
        self.choice: Choice | None = None  # between which places there is one; None: it is left alone
        self._candidates: tuple[Candidate, ...] = ()
        self._alone = ""
        if self.mode == "off":
            self._alone = "the mode is off here"
            return
        self.reading = reading = plans.read(request) if plans is not None else read(request)
        age = now - snapshot.taken_at if snapshot is not None else 0.0
        known = snapshot if age <= settings.slurm.stale_after_s else None
        figures = self._figures()
        if plans is not None and known is not None:
            planned = plans.plan(request, reading, known, settings, figures)
        else:
            planned = plan(request, reading, known, settings, figures)
        choice = planned.choice
        if planned.left_alone:
            self._alone = planned.left_alone
        elif snapshot is None:
            self._alone = "the cluster's state is not known yet"
        elif choice is None:
            limit = settings.slurm.stale_after_s
            self._alone = f"the cluster's state is {age:.0f} s old, more than {limit:.0f} s"
        elif len(choice.candidates) == 1:
            self._alone, self._candidates = choice.why, choice.candidates
        else:
            self.choice = choice

    @property
    def belongs(self) -> bool:
        """Whether it has to do with other jobs."""
        choice = self.choice
        if choice is None or self.site.workflows is None:
            return False
        return bool(self.request.dependency) or choice.shape.annotation.workflow is not None

    def belong(self) -> None:
        """Takes in what it has to do with others. At its turn, before it is scored: those before it may be of them."""
        choice, workflows = self.choice, self.site.workflows
        if choice is None or workflows is None or self.snapshot is None or not self.belongs:
            return
        shape = choice.shape
        self.belonging = workflows.belonging(
            shape.user, self.request.dependency, shape.annotation.workflow, shape.app, self.snapshot, self.now
        )
        if self.belonging.tail_s:
            shape = msgspec.structs.replace(shape, after_s=self.belonging.tail_s)
            self.choice = msgspec.structs.replace(choice, shape=shape)

    def verdict(self, scored: Scored | None, view: Snapshot | None, ledger: Ledger | None) -> Verdict:
        """What is decided, by what the policy makes of its choice, where it has one, on the view of its turn."""
        site, request, choice = self.site, self.request, self.choice
        self.token = site.new_token()
        if choice is None or scored is None or view is None or self.snapshot is None:
            return self._left_alone()
        if self.belongs:
            placing = placed(scored, choice, view, self.belonging, self.now, self._figures())
            scored, self.spare_s = placing.scored, placing.spare_s
        return self._decided(choice, scored, view, ledger if request.op == "submit" else None)

    def _figures(self) -> Mapping[str, Processor]:
        given = self.site.processors
        return table.load(self.site.settings.processors) if given is None else given

    def _left_alone(self) -> Verdict:
        candidates = self._candidates

        def complete() -> Decision:
            if self.workflows is not None:
                user = self.request.user or str(self.request.uid)
                self.workflows.add(self.token, user, self.request.name or "", ALONE, self.now)
            return Decision(
                **self._common(),
                action="keep",
                eligible=False,
                why=f"left alone: {self._alone}",
                candidates=candidates,
                probabilities=(1.0,) * len(candidates),
                message=self.reading.error,
            )

        return Verdict(self.token, self.mode, False, {}, self.reading.error, complete)

    def _decided(self, choice: Choice, scored: Scored, view: Snapshot, ledger: Ledger | None) -> Verdict:
        settings = self.site.settings
        shape, candidates, scores = choice.shape, choice.candidates, scored.predictions
        preferred, clause = prefer(scores, shape, settings.policy)
        explored: Probabilities = ()
        if self.explorer is not None and self.mode == "enforce":
            probes = self.site.probes
            open_to = scores if probes is None else probes.open(shape.app, preferred, scores, self.now)
            explored = self.explorer(preferred, open_to, shape, settings.policy, settings.explore)
        outcome = draw(
            preferred,
            len(candidates),
            self.mode,
            settings.experiment,
            self.site.rng,
            explored,
            self.token if explored else "",
        )
        chosen = candidates[outcome.chosen]
        applied = outcome.chosen != 0
        to_learn = bool(explored) and outcome.chosen != preferred and not outcome.holdout
        message = self.reading.error
        told = outcome.chosen if applied else preferred if self.mode == "advise" else 0
        if told:
            say = messages.rewritten if applied else messages.suggested
            line = say(self.request, candidates[told], scores[told], scores[0])
            message = f"{message}; {line}" if message else line

        def book(on: Ledger) -> None:
            _book(on, self.token, self.now, shape, chosen, scores[outcome.chosen], view, self._ready_at())

        def complete() -> Decision:
            if ledger is not None:
                book(ledger)
            if to_learn and ledger is not None and self.site.probes is not None:
                self.site.probes.send(shape.app, scores[outcome.chosen], self.now)
            if self.workflows is not None:
                self._remember(self.workflows, shape, scores, outcome.chosen)
            if scored.remember is not None and self.request.op == "submit":
                scored.remember()  # a question what would be is no submission
            predictions = scored.explained()
            by_whom = f"; the {self.site.policy.name} policy did not decide: {scored.fell_back}" if scored.by else ""
            return Decision(
                **self._common(scored.by),
                action="rewrite" if applied else "keep",
                eligible=True,
                why=self._why(candidates, predictions, preferred, clause, outcome) + by_whom,
                candidates=candidates,
                predictions=tuple(predictions),
                chosen=outcome.chosen,
                preferred=preferred,
                probabilities=outcome.probabilities,
                holdout=outcome.holdout,
                applied=applied,
                set=chosen.set,
                message=message,
                features=_features(shape, predictions, view, preferred),
            )

        fell_back = scored.kind if scored.by is not None else ""
        return Verdict(self.token, self.mode, applied, chosen.set, message, complete, fell_back, book, to_learn)

    def _common(self, by: tuple[str, str] | None = None) -> dict[str, Any]:
        annotation = self.reading.annotation
        app = annotation.app if annotation is not None else None
        return {
            "token": self.token,
            "decided_at": self.now,
            "mode": self.mode,
            "app": app or self.request.name or "unnamed",
            "policy": by[0] if by is not None else self.site.policy.name,
            "policy_version": by[1] if by is not None else self.site.policy.version,
            "annotation": annotation,
            "annotation_error": self.reading.error,
            "snapshot_taken_at": self.snapshot.taken_at if self.snapshot is not None else 0.0,
        }

    def _why(
        self,
        candidates: tuple[Candidate, ...],
        predictions: list[Prediction],
        preferred: int,
        clause: str,
        outcome: Draw,
    ) -> str:
        best, keep, name = predictions[preferred], predictions[0], candidates[preferred].name
        if preferred == 0:
            why = f"keep: {clause}; {keep.reason}"
        else:
            why = f"{name}: {clause}; {name}: {best.reason}; as submitted: {keep.reason}"
            if outcome.holdout:
                why = f"control group, left as it is; {why}"
        if self.mode == "enforce" and outcome.chosen != preferred and not outcome.holdout:
            place, loss = candidates[outcome.chosen].name, predictions[outcome.chosen].score - best.score
            risk = f", at an expected loss of {duration(loss)}" if loss >= 1 else ""
            why = f"sent to {place} to learn how long it runs there{risk}; otherwise {why}"
        return why + self._others()

    def _others(self) -> str:
        """What other jobs have to do with it, as the end of a sentence."""
        told = ""
        known = self.request.dependency and self.workflows is not None and self.belonging.known
        if known and self._ready_at() > self.now:
            told = f"; the jobs it waits for are expected to end in ~{duration(self._ready_at() - self.now)}"
        elif (self.request.dependency and not known) or (self.request.begin_time or 0) > self.now:
            told = "; when its dependency or begin time lets it start is not known, waits are as if it could now"
        if self.spare_s:
            told += f"; workflow {self.belonging.workflow} has ~{duration(self.spare_s)} to spare for it"
        return told

    def _ready_at(self) -> float:
        return self.belonging.ready_at if self.belonging.known else 0.0

    def _remember(self, workflows: Workflows, shape: JobShape, scores: list[Prediction], chosen: int) -> None:
        """Others may wait for this job."""
        best = min((each.wait_s + each.run_s * each.slowdown for each in scores if each.pool is not None), default=None)
        there = scores[chosen]
        end = self.now + there.wait_s + there.run_s * there.slowdown if there.pool is not None else None
        earliest = self.now + best if best is not None else None
        workflows.add(
            self.token, shape.user, shape.app, self.belonging, self.now, end, earliest, there.run_s * there.slowdown
        )


def _book(
    ledger: Ledger,
    token: str,
    now: float,
    shape: JobShape,
    candidate: Candidate,
    prediction: Prediction,
    view: Snapshot,
    not_before: float = 0.0,
) -> None:
    if prediction.pool is None:
        return
    slowdown, waves = prediction.slowdown, -(-shape.tasks // shape.tasks_at_once)  # with `%5`, five at a time
    shares = {share.pool: (share.tasks, share.run_s * slowdown) for share in prediction.spread}
    everything = (shape.tasks_at_once, prediction.run_s * slowdown)
    left = candidate.needs[candidate.pools.index(prediction.pool)].nodes
    for pool, need, tier in zip(candidate.pools, candidate.needs, candidate.tiers, strict=True):
        nodes = view.pools[pool].nodes
        if need.nodes > nodes and view.pools[pool].processor == view.pools[prediction.pool].processor:
            nodes = min(nodes, left)  # larger than the pool: it takes its nodes from several
            if not nodes:
                break
            left -= nodes
            need = need._replace(
                nodes=nodes, cpus=-(-need.cpus * nodes // need.nodes), gpus=-(-need.gpus * nodes // need.nodes)
            )
        elif pool not in (shares or (prediction.pool,)):
            continue
        tasks, expected_s = shares.get(pool, everything)
        run_s = min(expected_s, shape.time_limit_s or expected_s) * waves
        ledger.book(token, pool, need, run_s, now, priority_tier=tier, tasks=tasks, not_before=not_before)


def _features(shape: JobShape, predictions: list[Prediction], view: Snapshot, preferred: int) -> dict[str, float]:
    """Numbers of the job, of the cluster, and of the best candidates (by their index), for learning offline."""
    found = {
        "gpus": float(shape.gpus),
        "cpus": float(shape.cpus),
        "nodes": float(shape.nodes),
        "memory_mb": float(shape.memory_mb),
        "tasks": float(shape.tasks),
        "limit_s": shape.time_limit_s or 0.0,
        "queued": float(view.queued),
        "running": float(view.running),
    }
    best = sorted(range(len(predictions)), key=lambda number: predictions[number].score)[:MAX_FEATURED]
    for number in sorted({0, preferred, *best}):
        prediction = predictions[number]
        found[f"{number}.wait_s"] = prediction.wait_s
        found[f"{number}.run_s"] = prediction.run_s
        if prediction.slowdown != 1.0:
            found[f"{number}.slowdown"] = prediction.slowdown
        if prediction.pool is not None:
            found[f"{number}.load"] = view.load[prediction.pool]
            found[f"{number}.waiting"] = float(view.waiting[prediction.pool])
            found[f"{number}.pool_nodes"] = float(view.pools[prediction.pool].nodes)
    return found
