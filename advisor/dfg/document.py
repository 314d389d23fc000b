"""Reads one annotation document (YAML) into an `Annotation`, with limits, and says what is wrong where.

The parser's events are checked against what an annotation may hold as they come, so the first thing
that does not belong ends the reading: aliases are never followed, tags never resolved, nesting never
grows, and a scalar is only ever text until the field it stands in says what it must be. (YAML 1.1
would read the key `on` as true, and PyYAML reads `8.0e15` as text.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from advisor.dfg.graph import Annotation, CycleError, Edge, Kernel, topological_order
from advisor.dfg.scalars import name_problem, number, shown, size

MAX_BYTES = 64 * 1024
MAX_KERNELS = 512
MAX_EDGES = 4096
MAX_KINDS = 16  # in one kernel's `on`
# Reading blocks the daemon, and slurmctld waits for it: at about 1 µs each, so many events stay far
# below the hook's time-out. 512 full kernels are some 6,000; edges, written plainly, need none.
MAX_EVENTS = 8192

KEYS = ("app", "edges", "flexible", "kernels", "off", "requeue", "share", "work", "workflow")
KERNEL_KEYS = ("memory", "on", "work")
FLEXIBLE = ("partition", "gpu_type")

_KIND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}", re.ASCII)
_TRUE = ("true", "yes")
_FALSE = ("false", "no")

# `edges: [[a, b, 4G], …]` with nothing but plain words in it, on one line or several.
_PLAIN_EDGES = re.compile(r"^edges:[ \t]+(\[[\w.+\-\[\], \t\n]*\])[ \t]*$", re.MULTILINE | re.ASCII)
# In it: a word that is two words, that starts with a dash, or that is missing.
_UNUSUAL = re.compile(r"[\w.+-]\s+[\w.+-]|[\[,]\s*[,\]-]", re.ASCII)
_QUOTES = re.compile(r"[\"'|>]")


class Problem(Exception):
    """What is wrong with a document, and on which of its lines (from 0), if it is one line's fault."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def read(text: str) -> Annotation:
    """The annotation that `text` spells; raises `Problem`."""
    _check_size(text)
    text, edges = _take_plain_edges(text)
    try:
        return _Reader(text, edges).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context or "it cannot be read"
        raise Problem(f"not valid YAML: {what}", mark.line if mark else None) from None
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") if isinstance(error.position, int) else None
        raise Problem(f"not valid YAML: {error.reason}", line) from None
    except yaml.YAMLError as error:
        raise Problem(f"not valid YAML: {error}", None) from None


def _check_size(text: str) -> None:
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start)
        raise Problem("not valid UTF-8", line) from None
    if length > MAX_BYTES:
        raise Problem(f"{length} bytes are more than the {MAX_BYTES} that an annotation may have", None)


def _take_plain_edges(text: str) -> tuple[str, list[tuple[list[str], int]]]:
    """Takes a plainly written list of edges out of `text`: a long one would be most of the reading.

    Anything unusual about it (quotes, comments, words with blanks) leaves it to the YAML parser.
    """
    match = _PLAIN_EDGES.search(text)
    if match is None or _QUOTES.search(text):
        return text, []
    spelled = match[1]
    compact = "".join(spelled.split())
    edges = compact.count("[") - 1
    if not compact.startswith("[[") or not compact.endswith("]]") or _UNUSUAL.search(spelled):
        return text, []
    rows = compact[2:-2].split("],[")
    if len(rows) != edges or compact.count("]") - 1 != edges:
        return text, []
    line = text.count("\n", 0, match.start(1))
    lines = [line] * edges
    breaks = spelled.count("\n")
    if breaks:
        at = 1
        for index in range(edges):
            opens = spelled.index("[", at)
            line += spelled.count("\n", at, opens)
            lines[index] = line
            at = opens + 1
    text = f"{text[: match.start(1)]}[]{breaks * chr(10)}{text[match.end(1) :]}"
    return text, [(row.split(","), line) for row, line in zip(rows, lines, strict=True)]


class _Reader:
    """Walks the parser's events along the one shape that an annotation may have."""

    def __init__(self, text: str, plain_edges: list[tuple[list[str], int]]) -> None:
        self._events = _events(text)
        self._plain_edges = plain_edges
        self._kernels: dict[str, Kernel] = {}
        self._edges: list[tuple[Edge, int]] = []

    def document(self) -> Annotation:
        next(self._events)  # the start of the stream
        event = next(self._events)
        if not isinstance(event, DocumentStartEvent):
            raise Problem('it is empty; write for example "app: NAME"', None)
        event = next(self._events)
        if isinstance(event, ScalarEvent) and event.value == "off":
            annotation = Annotation(off=True)
        elif isinstance(event, MappingStartEvent):
            annotation = self._top()
        else:
            _stop(event, f'expected "KEY: VALUE" with a key of {", ".join(KEYS)}, or "off"')
        next(self._events)
        event = next(self._events)
        if isinstance(event, DocumentStartEvent):
            _stop(event, "a second YAML document; one is all that an annotation may have")
        return annotation

    def _top(self) -> Annotation:
        app = workflow = None
        share = requeue = off = False
        work = 0.0
        flexible: tuple[str, ...] = ()
        for key, event in self._keys("", KEYS):
            if key == "app":
                app = _name(key, event)
            elif key == "workflow":
                workflow = _name(key, event)
            elif key == "share":
                share = _boolean(key, event)
            elif key == "requeue":
                requeue = _boolean(key, event)
            elif key == "off":
                off = _boolean(key, event)
            elif key == "work":
                work = _number(key, event)
            elif key == "flexible":
                flexible = self._flexible(event)
            elif key == "kernels":
                self._read_kernels(event)
            else:
                self._read_edges(event)
        return Annotation(
            app=app,
            kernels=tuple(self._kernels.values()),
            edges=self._checked_edges(),
            share=share,
            requeue=requeue,
            workflow=workflow,
            work=work,
            flexible=flexible,
            off=off,
        )

    def _keys(self, where: str, allowed: tuple[str, ...] | None) -> Iterator[tuple[str, Event]]:
        """Each key of a mapping with the first event of its value."""
        seen = set()
        while True:
            event = next(self._events)
            if isinstance(event, MappingEndEvent):
                return
            if not isinstance(event, ScalarEvent):
                _stop(event, f"{where}a key must be a word")
            key = event.value
            if allowed and key not in allowed:
                close = get_close_matches(key[:40], allowed, n=1)
                hint = f'did you mean "{close[0]}"?' if close else f"known: {', '.join(allowed)}"
                _stop(event, f"{where}unknown key {shown(key)} ({hint})")
            if key in seen:
                _stop(event, f"{where}{shown(key)} is there twice")
            seen.add(key)
            if allowed is None and (problem := name_problem(where.removesuffix(": "), key)):
                _stop(event, problem)
            yield key, next(self._events)

    def _items(self, what: str, event: Event, expected: str) -> Iterator[Event]:
        if not isinstance(event, SequenceStartEvent):
            _stop(event, f"{what}: expected {expected}, not {_spelling(event)}")
        while not isinstance(event := next(self._events), SequenceEndEvent):
            yield event

    def _flexible(self, event: Event) -> tuple[str, ...]:
        expected = "a list of partition, gpu_type"
        items = [event] if isinstance(event, ScalarEvent) else self._items("flexible", event, expected)
        named = []
        for item in items:
            if not isinstance(item, ScalarEvent) or item.value not in FLEXIBLE:
                _stop(item, f"flexible: expected {expected}, not {_spelling(item)}")
            if item.value in named:
                _stop(item, f"flexible: {shown(item.value)} is there twice")
            named.append(item.value)
        return tuple(named)

    def _read_kernels(self, event: Event) -> None:
        if not isinstance(event, MappingStartEvent):
            _stop(event, f'kernels: expected "NAME: {{on: …, work: …, memory: …}}", not {_spelling(event)}')
        for name, value in self._keys("kernels: ", None):
            if len(self._kernels) == MAX_KERNELS:
                _stop(value, f"kernels: more than {MAX_KERNELS}")
            self._kernels[name] = self._kernel(name, value)

    def _kernel(self, name: str, event: Event) -> Kernel:
        what = f"kernel {shown(name)}"
        if isinstance(event, ScalarEvent) and not event.style and event.value in ("", "~", "null"):
            return Kernel(name)
        if not isinstance(event, MappingStartEvent):
            _stop(event, f"{what}: expected {{on: …, work: …, memory: …}}, not {_spelling(event)}")
        on: tuple[str, ...] = ("cpu",)
        work = 0.0
        memory = 0
        for key, value in self._keys(f"{what}: ", KERNEL_KEYS):
            if key == "on":
                on = self._kinds(what, value)
            elif key == "work":
                work = _number(f"{what}: work", value)
            else:
                try:
                    memory = size(_text(value))
                except ValueError as error:
                    _stop(value, f"{what}: memory: {error}")
        return Kernel(name, on, work, memory)

    def _kinds(self, what: str, event: Event) -> tuple[str, ...]:
        expected = "cpu, gpu or a GPU type, or a list of them"
        items = [event] if isinstance(event, ScalarEvent) else self._items(f"{what}: on", event, expected)
        kinds: list[str] = []
        for item in items:
            text = _text(item)
            if not text or not _KIND.fullmatch(text):
                _stop(item, f"{what}: on: expected {expected}, not {_spelling(item)}")
            if len(kinds) == MAX_KINDS:
                _stop(item, f"{what}: on: more than {MAX_KINDS}")
            kinds.append(text.lower() if text.lower() in ("cpu", "gpu") else text)
        if not kinds:
            _stop(event, f"{what}: on: the list is empty; expected {expected}")
        return tuple(dict.fromkeys(kinds))

    def _read_edges(self, event: Event) -> None:
        for item in self._items("edges", event, "[[FROM, TO, SIZE], …]"):
            line = _line(item)
            fields: list[str] = []
            for field in self._items("edges", item, "[FROM, TO, SIZE]"):
                text = _text(field)
                if text is None or len(fields) == 3:
                    _stop(field, "edges: an edge is [FROM, TO] or [FROM, TO, SIZE]")
                fields.append(text)
            self._add_edge(fields, line)
        for fields, line in self._plain_edges:
            self._add_edge(fields, line)

    def _add_edge(self, fields: list[str], line: int) -> None:
        if len(self._edges) == MAX_EDGES:
            raise Problem(f"edges: more than {MAX_EDGES}", line)
        if not 2 <= len(fields) <= 3:
            raise Problem("edges: an edge is [FROM, TO] or [FROM, TO, SIZE]", line)
        bytes_ = 0
        if len(fields) == 3:
            try:
                bytes_ = size(fields[2])
            except ValueError as error:
                what = f"edge {shown(fields[0])} to {shown(fields[1])}"
                raise Problem(f"{what}: size: {error}", line) from None
        self._edges.append((Edge(fields[0], fields[1], bytes_), line))

    def _checked_edges(self) -> tuple[Edge, ...]:
        for edge, line in self._edges:
            for name in (edge.source, edge.target):
                if name not in self._kernels:
                    close = get_close_matches(name[:40], list(self._kernels)[:64], n=1)
                    hint = f" (did you mean {shown(close[0])}?)" if close else ""
                    raise Problem(f"edges: there is no kernel {shown(name)}{hint}", line)
        edges = tuple(edge for edge, _ in self._edges)
        try:
            topological_order(self._kernels.values(), edges)
        except CycleError as error:
            raise self._cycle(error.ring) from None
        return edges

    def _cycle(self, ring: tuple[str, ...]) -> Problem:
        after = dict(zip(ring, (*ring[1:], ring[0]), strict=True))
        line = max(line for edge, line in self._edges if after.get(edge.source) == edge.target)
        names = [shown(name) for name in (*ring, ring[0])]
        if len(names) > 6:
            names[3:-2] = ["…"]
        return Problem(f"edges: {' → '.join(names)} is a cycle; a dataflow graph has none", line)


def _events(text: str) -> Iterator[Event]:
    parser = _Parser(text)
    for _ in range(MAX_EVENTS):
        event = parser.get_event()
        if event is None:
            return
        kind = type(event)
        if kind in _NODES:
            if event.anchor is not None:
                _stop(event, "YAML anchors (&name) are not allowed")
            if event.tag is not None:
                _stop(event, "YAML tags (!name) are not allowed")
        elif kind is AliasEvent:
            _stop(event, "YAML aliases (*name) are not allowed")
        elif kind is DocumentStartEvent and event.tags:
            _stop(event, "YAML tags (%TAG) are not allowed")
        yield event
    raise Problem("it takes too long to read; write edges without quotes or comments, as [[FROM, TO, SIZE], …]", None)


_NODES = frozenset((ScalarEvent, MappingStartEvent, SequenceStartEvent))
# The C parser where PyYAML was built with it; else the same events, some thirty times slower.
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _stop(event: Event, message: str) -> NoReturn:
    raise Problem(message, _line(event))


def _line(event: Event) -> int:
    mark = event.start_mark
    assert mark is not None  # the parser always sets it; only the emitter's events have none
    return mark.line


def _text(event: Event) -> str | None:
    return event.value if isinstance(event, ScalarEvent) else None


def _spelling(event: Event) -> str:
    if isinstance(event, ScalarEvent):
        return shown(event.value) if event.value else "nothing"
    return "a list" if isinstance(event, SequenceStartEvent) else "a map"


def _name(what: str, event: Event) -> str:
    text = _text(event)
    if text is None:
        _stop(event, f"{what}: expected a name, not {_spelling(event)}")
    if problem := name_problem(what, text):
        _stop(event, problem)
    return text


def _boolean(what: str, event: Event) -> bool:
    if isinstance(event, ScalarEvent) and not event.style:
        text = event.value.lower()
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
    _stop(event, f"{what}: expected true or false, not {_spelling(event)}")


def _number(what: str, event: Event) -> float:
    try:
        return number(_text(event) or "")
    except ValueError:
        _stop(event, f"{what}: expected a number such as 8.0e15, not {_spelling(event)}")
