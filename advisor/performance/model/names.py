"""Which apps are alike, going by their names: those that differ in the last number only are one family.

`train_0013` and `train_0014`, `LM (batch size 5)` and `LM (batch size 80)`: users write what changes from one job to
the next as a number, and put it last. The number may matter (a batch size) or not (a counter); the model learns which.
"""

from __future__ import annotations

import math
import re

_LAST_NUMBER = re.compile(r"[0-9]+(?=[^0-9]*\Z)")
_DIGITS = 9  # longer ones are time stamps or ids


def family(app: str) -> tuple[str, float | None]:
    """The name with its last number as `#`, and that number's logarithm; None where it has none."""
    match = _LAST_NUMBER.search(app)
    if match is None:
        return app, None
    number = math.log(max(int(match[0][-_DIGITS:]), 1))
    return f"{app[: match.start()]}#{app[match.end() :]}", number
