"""Reads the records of a `scontrol --json` answer one by one while it arrives.

Slurm's JSON takes about 10 KB for each job, mostly indentation: half a gigabyte for 50,000 jobs. Read in one piece
that would be the daemon's largest use of memory, and one long call that stops every other thread. JSON text
holds no line breaks inside strings, so the indentation that Slurm prints tells safely where a record ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from advisor.cluster.types import SourceError

T = TypeVar("T")

_BETWEEN = b"\n    },\n    {\n"
_END = b"\n    }\n  ]"


def records(output: Iterable[bytes], key: str, kind: type[T]) -> Iterator[T]:
    """Each element of the top-level list `key`, decoded as `kind`; raises `SourceError`."""
    chunks = iter(output)
    opening = b'\n  "%s": [\n    {\n' % key.encode()
    seen = bytearray()
    for chunk in chunks:
        seen += chunk
        found = seen.find(opening)
        if found >= 0:
            del seen[: found + len(opening)]
            yield from _indented(seen, chunks, key, kind)
            return
    yield from _whole(bytes(seen), key, kind)


def _indented(rest: bytearray, chunks: Iterator[bytes], key: str, kind: type[T]) -> Iterator[T]:
    decoder = msgspec.json.Decoder(kind)
    position = 0  # where the record at hand begins
    searched = 0  # no separator ends before this
    while True:
        between = rest.find(_BETWEEN, searched)
        if between >= 0:
            yield _decode(decoder, b"{" + rest[position:between] + b"}", key)
            position = searched = between + len(_BETWEEN)
            continue
        end = rest.find(_END, searched)
        if end >= 0:
            yield _decode(decoder, b"{" + rest[position:end] + b"}", key)
            for _ in chunks:  # let the command finish, so that its exit status is checked
                pass
            return
        del rest[:position]
        position = 0
        searched = max(len(rest) - len(_BETWEEN), 0)
        chunk = next(chunks, None)
        if chunk is None:
            raise SourceError(f"the JSON of scontrol ends in the middle of the {key}: was its output cut?")
        rest += chunk


def _whole(text: bytes, key: str, kind: type[T]) -> Iterator[T]:
    """An answer that is not indented, or has no records."""
    try:
        answer = _decode(msgspec.json.Decoder(dict[str, msgspec.Raw]), text, key)
    except SourceError as error:
        raise SourceError(f"expected JSON with {key} from scontrol, got {text[:80]!r} ({error})") from None
    if key not in answer:
        raise SourceError(f"the JSON of scontrol has no {key}; it has {', '.join(sorted(answer))[:200]}")
    yield from _decode(msgspec.json.Decoder(list[kind]), bytes(answer[key]), key)  # type: ignore[valid-type]


def _decode(decoder: msgspec.json.Decoder[T], text: bytes, key: str) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        first = error
    try:
        # Slurm passes on what users put into names and comments, which need not be UTF-8.
        return decoder.decode(text.decode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        raise SourceError(f"scontrol's JSON of {key} is not as expected: {first}") from None
