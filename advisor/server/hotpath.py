"""From one line of the hook to the line of the answer: decode, decide, encode, nothing else.

Reads one immutable snapshot; no file, no SQL, no question to Slurm. What has to be written is handed over as
`Answer.after`, which runs once the reply is on its way, and so does whatever of the decision slurmctld need not
wait for. Whatever goes wrong here, the answer is to keep the job as it is. Answers that are prepared (`ahead`) are
worked out here as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from advisor import protocol
from advisor.performance import processors
from advisor.performance.snapshot import Snapshot
from advisor.performance.waits import Ledger
from advisor.policy.decision import Site, Verdict, consider_at
from advisor.policy.guarded import Guarded
from advisor.policy.interface import Decision, Policy
from advisor.policy.plans import Plans
from advisor.policy.probes import Probes
from advisor.policy.together import Together
from advisor.policy.workflow import Workflows
from advisor.server import rights
from advisor.server.ahead import Ahead, Hearer
from advisor.server.connection import Answer, refusal
from advisor.server.counters import Counters
from advisor.server.journal import Sparingly
from advisor.server.preparing import Prepared, Preparing
from advisor.server.requests import Requests
from advisor.server.status import Status
from advisor.settings import Settings

log = logging.getLogger(__name__)

Record = Callable[[protocol.SubmitRequest, Decision, float, str], None]  # …, latency in µs, cluster


class _Head(msgspec.Struct, frozen=True):
    """What every request of every version has."""

    v: int
    op: str = "submit"


_KEEP = protocol.Reply(v=protocol.VERSION)
_NOTHING = Answer(b"")
_USED = f'{{"v":{protocol.VERSION},"op":"used",'.encode()  # as the hook spells it
_SECONDS = re.compile(r"[0-9]+ s\b")


class HotPath:
    """Answers requests with whatever snapshot, policy and settings are in force."""

    def __init__(
        self, settings: Settings, policy: Policy, counters: Counters, record: Record, status: Callable[[], Status]
    ) -> None:
        self.snapshot: Snapshot | None = None
        self._ahead = Ahead(self._begin_preparing, lambda: self._unfinished is not None, self.settle)
        self.configure(settings, policy)
        self.ledger: Ledger = Ledger()
        self._counters = counters
        self._record = record
        self._status = status
        self._sparingly = Sparingly(log)
        self._rng = random.Random()  # seeded by the system
        self._submit = Requests()
        self._plans = Plans()
        self._probes = Probes()
        self._workflows = Workflows()
        self._unfinished: Callable[[], None] | None = None  # what the last decision left for later
        self._used_in_all = 0  # answers that were prepared
        self._note = msgspec.json.Decoder(protocol.UsedNote)
        self._head = msgspec.json.Decoder(_Head)
        self._encoder = msgspec.json.Encoder()

    def configure(self, settings: Settings, policy: Policy) -> None:
        """Decides by these from now on."""
        if isinstance(policy, Guarded):
            policy.budget_s = settings.policy.budget_ms / 1e3
            if self.snapshot is not None:
                policy.observe(self.snapshot)
        self.settings = settings
        self.policy = policy
        self._processors = processors.load(settings.processors)
        self._ahead.outdated()

    def serve(self, snapshot: Snapshot, ledger: Ledger) -> None:
        """Decides on this snapshot from now on; on the ledger is what was decided and is not in it."""
        if isinstance(self.policy, Guarded):
            self.policy.observe(snapshot)
        self.snapshot, self.ledger = snapshot, ledger
        self._workflows.seen(snapshot)
        self._ahead.outdated()

    def answer(self, line: bytes, started: float, hearer: Hearer | None = None) -> Answer | Awaitable[Answer]:
        """The answer to one line; `started` is `time.perf_counter()` when it was complete.

        `hearer`: where answers to the submissions that follow may be sent ahead.
        """
        if hearer is not None and line.startswith(_USED):
            return self._used(line, hearer)
        try:
            request = self._submit.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._not_a_plain_submission(line, started, hearer)
        return self._submission(request, started, hearer)

    def answer_together(
        self, lines: Sequence[tuple[bytes, float, Hearer | None]]
    ) -> Iterator[Answer | Awaitable[Answer]]:
        """The answers to lines that were found at once, in their order; each is made when it is asked for.

        The same as `answer` gives to one after the other. Submissions among them are a batch (`Together`).
        """
        plain: dict[int, protocol.SubmitRequest] = {}
        for number, (line, _, _) in enumerate(lines):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                request = self._submit.decode(line)
                if request.v == protocol.VERSION and request.op == "submit":
                    plain[number] = request
        together = Together(list(plain.values()), self.snapshot, self.ledger, self._site(), time.time())
        places = {number: place for place, number in enumerate(plain)}
        used = self._used_in_all

        def decide(number: int) -> Verdict:
            nonlocal used
            if used != self._used_in_all:  # what was noted meanwhile has taken something
                together.forget()
                used = self._used_in_all
            return together.verdict(places[number])

        for number, (line, started, hearer) in enumerate(lines):
            if number in plain:
                yield self._submission(plain[number], started, hearer, functools.partial(decide, number))
            else:
                yield self.answer(line, started, hearer)

    def _submission(
        self,
        request: protocol.SubmitRequest,
        started: float,
        hearer: Hearer | None,
        decide: Callable[[], Verdict] | None = None,
    ) -> Answer | Awaitable[Answer]:
        if request.v != protocol.VERSION:
            return self._other_version(request.v)
        if request.op == "advise":
            self._counters.dry_runs += 1
            return self._dry_run(request)
        self._counters.submissions += 1
        try:
            self.settle()
            verdict = self._consider(request) if decide is None else decide()
            reply = self._line(verdict.reply())
        except Exception as error:  # whatever it is, it must not harm the job
            return self._kept_after_error(error)
        latency_us = (time.perf_counter() - started) * 1e6

        def finish() -> None:
            self._afterwards(request, verdict, latency_us)
            if hearer is not None:
                self._ahead.asked(hearer, request)
            self._ahead.outdated(but=hearer)

        self._unfinished = finish
        return Answer(reply, self.settle)

    def _used(self, line: bytes, notes: Hearer) -> Answer:
        """A submission has come and gone, with an answer that was prepared for it."""
        try:
            note = self._note.decode(line)
        except msgspec.MsgspecError as error:
            return self._garbage(str(error))
        self._finish()
        self._counters.submissions += 1
        self._used_in_all += 1
        used = self._ahead.used(note.number, note.place, notes)
        if used is None:
            self._counters.unknown_notes += 1
            self._sparingly.say(logging.ERROR, "note", "a hook used an answer that was not prepared for it")
            return _NOTHING
        self._counters.prepared += 1
        hearer, prepared = used

        def finish() -> None:
            self._afterwards_of_prepared(prepared)
            self._ahead.outdated(but=hearer)

        # Not at once: slurmctld may still be at that submission, and may need the core.
        self._unfinished = finish
        return Answer(b"", self.settle)

    def settle(self) -> None:
        """Completes what was decided: the next decision, and the next snapshot, must find it on the ledger."""
        self._finish()
        self._ahead.read_notes()
        self._finish()

    def _finish(self) -> None:
        finish, self._unfinished = self._unfinished, None
        if finish is not None:
            finish()

    def _begin_preparing(self) -> Preparing:
        return Preparing(self._site(), self.snapshot, self.ledger, self._not_prepared)

    def _not_prepared(self, error: Exception) -> None:
        self._counters.errors += 1
        self._sparingly.say(logging.ERROR, "prepare", "an answer could not be prepared", traceback=error)

    def _afterwards_of_prepared(self, used: Prepared) -> None:
        why = used.verdict.fell_back
        if why and isinstance(self.policy, Guarded):
            self.policy.fallbacks[why] = self.policy.fallbacks.get(why, 0) + 1
        first = len(used.ledger)
        self._afterwards(used.request, used.verdict, used.took_us)
        if used.ledger is not self.ledger and self.snapshot is not None:
            # Used while a new snapshot took over: it was booked on the ledger of the old one.
            for booking in used.ledger.unknown_to(self.snapshot, first):
                self.ledger.carry(booking)

    def _consider(self, request: protocol.SubmitRequest) -> Verdict:
        return consider_at(self._site(), request, self.snapshot, self.ledger, time.time())

    def _site(self) -> Site:
        return Site(
            self.policy,
            self.settings,
            self._rng,
            self._new_token,
            self._processors,
            self._plans,
            workflows=self._workflows,
            probes=self._probes,
        )

    def _new_token(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"

    def _afterwards(self, request: protocol.SubmitRequest, verdict: Verdict, latency_us: float) -> None:
        """Books, counts and logs a decision whose reply is already with the hook."""
        counters = self._counters
        counters.latency.add(round(latency_us))
        try:
            decision = verdict.complete()
        except Exception as error:
            counters.errors += 1
            self._sparingly.say(
                logging.ERROR, f"complete {type(error).__name__}", "a decision could not be completed", traceback=True
            )
            return
        counters.eligible += decision.eligible
        counters.holdout += decision.holdout
        if decision.action == "rewrite":
            counters.rewritten += 1
        else:
            counters.kept += 1
        counters.reason(_reason(decision))
        if decision.mode == "off":
            return
        try:
            self._record(request, decision, latency_us, self.snapshot.cluster if self.snapshot else "")
        except Exception as error:
            counters.errors += 1
            self._sparingly.say(
                logging.ERROR, f"record {type(error).__name__}", "a decision could not be logged", traceback=True
            )

    def _kept_after_error(self, error: Exception) -> Answer:
        self._counters.errors += 1
        self._counters.kept += 1
        self._counters.reason("an error in the daemon")
        self._sparingly.say(
            logging.ERROR,
            f"decide {type(error).__name__}",
            "a decision failed; the job was left as it is",
            traceback=True,
        )
        return Answer(self._line(_KEEP))

    async def _dry_run(self, request: protocol.SubmitRequest) -> Answer:
        snapshot = self.snapshot
        if snapshot is None:
            return Answer(refusal("Slurm has not answered the daemon yet; see 'advisor status'"))
        try:
            if not request.partitions:
                listed = await asyncio.to_thread(rights.part_list, snapshot, request.user, request.uid)
                request = msgspec.structs.replace(request, partitions=listed)
            self.settle()
            verdict = self._consider(request)
            shown = msgspec.to_builtins(verdict.complete())
        except Exception:
            self._counters.errors += 1
            self._sparingly.say(logging.ERROR, "advise", "a dry run failed", traceback=True)
            return Answer(refusal("the daemon failed on this job; its log has the traceback"))
        reply = msgspec.structs.replace(verdict.reply(), token=None, decision=shown)
        return Answer(self._line(reply))

    def _not_a_plain_submission(self, line: bytes, started: float, hearer: Hearer | None) -> Answer | Awaitable[Answer]:
        """A command's question, another version, text that is not UTF-8, or garbage."""
        clean = line.decode("utf-8", "replace").encode()
        try:
            head = self._head.decode(clean)
        except (msgspec.MsgspecError, RecursionError) as error:
            return self._garbage(str(error))
        if head.v != protocol.VERSION:
            return self._other_version(head.v)
        if head.op == "notes" and hearer is not None:
            self._ahead.notes_come(hearer)
            return Answer(b"", quiet=True)
        try:
            if head.op in ("ping", "status"):
                return self._control(msgspec.json.decode(clean, type=protocol.ControlRequest))
            return self._submission(self._submit.decode(clean), started, hearer)
        except (msgspec.MsgspecError, RecursionError) as error:
            # A well-formed line that does not say what it should: the next one may.
            self._counters.bad_requests += 1
            return Answer(refusal(f"the request is not as protocol version {protocol.VERSION} has it: {error}"))

    def _control(self, request: protocol.ControlRequest) -> Answer:
        if request.op == "ping":
            return Answer(self._line(_KEEP))
        self.settle()
        return Answer(self._encoder.encode(self._status()) + b"\n")

    def _garbage(self, why: str) -> Answer:
        self._counters.bad_requests += 1
        self._sparingly.say(logging.WARNING, "garbage", f"a request could not be read and was refused: {why}")
        return Answer(refusal(f"the request could not be read: {why}"), close=True)

    def _other_version(self, version: int) -> Answer:
        self._counters.other_versions += 1
        text = f"the hook speaks protocol version {version}, the daemon {protocol.VERSION}"
        self._sparingly.say(logging.WARNING, "version", f"{text}: run 'advisor hook install' again")
        return Answer(refusal(f"{text}; install the hook and the daemon of one release"))

    def _line(self, reply: protocol.Reply) -> bytes:
        return self._encoder.encode(reply) + b"\n"


def _reason(decision: Decision) -> str:
    """Why, without the numbers that make each decision's sentence its own."""
    if not decision.eligible:
        return _SECONDS.sub("… s", decision.why)
    if decision.holdout:
        return "kept: control group"
    if decision.mode == "enforce" and decision.chosen != decision.preferred:
        return f"{'changed' if decision.applied else 'kept'}: to learn how long it runs there"
    if decision.action == "rewrite":
        return "changed: expected to finish sooner elsewhere"
    if decision.preferred:
        return f"kept: mode {decision.mode}"
    return "kept: nothing clearly better"
