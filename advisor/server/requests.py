"""Decodes the hook's lines. The list of partitions, most of a line, is the same in almost all of them.

So it is decoded once for each way it is spelled, and submissions that spell it alike share one list: what
is worked out from it can be found again by the list itself (`advisor.policy.plans`).
"""

from __future__ import annotations

import msgspec

from advisor.protocol import PartitionLimits, SubmitRequest

# Users of the same groups and accounts may use the same partitions.
_MAX_LISTS = 128
_MAX_LIST_BYTES = 128 * 1024


class _Line(SubmitRequest, frozen=True):
    """A request whose partitions are not read yet."""

    partitions: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]


class Requests:
    """A decoder of submissions; raises `msgspec.MsgspecError` as msgspec's own does."""

    def __init__(self) -> None:
        self._line = msgspec.json.Decoder(_Line)
        self._partitions = msgspec.json.Decoder(list[PartitionLimits])
        self._known: dict[bytes, list[PartitionLimits]] = {}

    def decode(self, line: bytes) -> SubmitRequest:
        """The request that `line` spells."""
        request = self._line.decode(line)
        spelled = bytes(request.partitions)
        listed = self._known.get(spelled)
        if listed is None:
            listed = self._partitions.decode(spelled)
            if len(spelled) <= _MAX_LIST_BYTES:
                if len(self._known) >= _MAX_LISTS:
                    self._known.clear()
                self._known[spelled] = listed
        # Nobody else has seen the request yet.
        msgspec.structs.force_setattr(request, "partitions", listed)
        return request
