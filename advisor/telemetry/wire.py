"""How batches travel from an agent to the daemon: one frame each way, over TCP.

A frame is a magic word, the lengths of a munge credential and of a body, and these two. The credential covers the
body's digest, so that it vouches for this batch and no other. The body is JSON, compressed. The answer is JSON with a
length before it. Only the standard library, since agents run with nothing else.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from dataclasses import asdict, dataclass
from typing import Any, Literal

VERSION = 1
MAGIC = b"ADT1"
HEADER = struct.Struct(">4sII")
LENGTH = struct.Struct(">I")
MOST_CREDENTIAL = 8 << 10
MOST_ANSWER = 64 << 10
# JSON of counters shrinks five- to tenfold; what shrinks much more is no batch of ours.
MOST_EXPANSION = 30

Code = Literal["stored", "credential", "oversize", "malformed", "busy"]


class WireError(Exception):
    """The other end does not keep to the protocol; the text says how."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the daemon made of a batch."""

    code: Code
    reason: str = ""
    new: int = 0  # samples
    known: int = 0  # samples that had been delivered before
    old: int = 0  # samples too old to be told from ones delivered before
    limit: int = 0  # bytes a body may have, where it had too many

    @property
    def settled(self) -> bool:
        """Whether there is no use in sending the batch again as it is."""
        return self.code in ("stored", "malformed")


def pack(batch: dict[str, Any]) -> bytes:
    """A batch as a body."""
    return zlib.compress(json.dumps(batch, separators=(",", ":"), allow_nan=False).encode(), 6)


def unpack(body: bytes, most: int) -> bytes:
    """The JSON text of a body; raises `WireError` if it is damaged or would take more than `most` bytes."""
    decompressor = zlib.decompressobj()
    try:
        text = decompressor.decompress(body, most)
    except zlib.error as error:
        raise WireError(f"the body cannot be decompressed ({error})") from None
    if decompressor.unconsumed_tail:
        raise WireError(f"the body takes more than {most} bytes when decompressed")
    if not decompressor.eof:
        raise WireError("the body ends in the middle")
    return text


def sealed(body: bytes) -> bytes:
    """What a credential for this body must hold."""
    return f"slurm-advisor telemetry {VERSION} sha256={hashlib.sha256(body).hexdigest()}".encode()


def frame(credential: bytes, body: bytes) -> bytes:
    """A whole frame."""
    return HEADER.pack(MAGIC, len(credential), len(body)) + credential + body


def encode_answer(answer: Answer) -> bytes:
    """An answer with its length."""
    text = json.dumps(asdict(answer), separators=(",", ":")).encode()
    return LENGTH.pack(len(text)) + text


def decode_answer(text: bytes) -> Answer:
    """The answer in these bytes; raises `WireError`."""
    try:
        fields = json.loads(text)
        answer = Answer(**{key: fields[key] for key in Answer.__dataclass_fields__ if key in fields})
    except (ValueError, TypeError, KeyError) as error:
        raise WireError(f"the daemon's answer cannot be read ({error})") from None
    if answer.code not in ("stored", "credential", "oversize", "malformed", "busy"):
        raise WireError(f"the daemon answered {answer.code!r}, which this agent does not know")
    return answer
