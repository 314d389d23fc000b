"""Jobs that were sent somewhere to learn and have told nothing yet: a second one like them would pay for the same word.

Of one app on one processor there is one such job at a time. It is over when what is not known of the app there has
become less, or when twice the time has passed in which the job was expected to end.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.policy.interface import Prediction

# Jobs that run make doubt a little smaller before they end; less than this part of it is left when one has ended.
_TOLD = 0.95
_LATE = 2.0
_MOST = 4096


class _Sent(msgspec.Struct, frozen=True):
    until: float
    apart_log: float


class Probes:
    """Remembers them."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], _Sent] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def open(self, app: str, preferred: int, predictions: Sequence[Prediction], now: float) -> Sequence[Prediction]:
        """The predictions; where a job of the app is learning already they have no pool, so that no other is sent."""
        if not self._sent:
            return predictions
        return [
            msgspec.structs.replace(each, pool=None)
            if each.candidate != preferred and self._under_way(app, each, now)
            else each
            for each in predictions
        ]

    def send(self, app: str, prediction: Prediction, now: float) -> None:
        """A job of the app goes there to learn."""
        if len(self._sent) >= _MOST:
            self._sent = {key: each for key, each in self._sent.items() if each.until > now}
            while len(self._sent) >= _MOST:
                del self._sent[next(iter(self._sent))]
        takes = prediction.wait_s + prediction.run_s * prediction.slowdown
        self._sent[app, prediction.processor] = _Sent(now + _LATE * takes, prediction.apart_log)

    def _under_way(self, app: str, prediction: Prediction, now: float) -> bool:
        key = app, prediction.processor
        sent = self._sent.get(key)
        if sent is None:
            return False
        if now < sent.until and prediction.apart_log > _TOLD * sent.apart_log:
            return True
        del self._sent[key]
        return False
