"""The table of processor types: what one GPU, or one CPU core, can do at its peak.

Shipped in `models/processors.yaml`, corrected by a site under `processors:`. Sites spell types in many ways
(`tesla_v100-sxm2-32gb`, `nvidia_a100_80gb_pcie`), so a name is also looked up by its parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec
import yaml

from advisor.cluster.gres import PART, whole
from advisor.resources import folder
from advisor.settings import Processor

# A GPU of which a job has a part is a type of its own, of which run times are learned; until they are, it is taken to
# be so much slower than the whole.
SHARED_SLOWER = 1.5
# `1g.5gb`, `3g`: a slice of a GPU, which is not what the table's figures are about.
_SLICE = re.compile(r"(?:^|[_.-])[1-7]g(?:[_.-]|$)")
_PARTS = re.compile(r"[_\s-]+")


@lru_cache(maxsize=1)
def _shipped() -> dict[str, Processor]:
    text = (folder("models") / "processors.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), dict[str, Processor])


def load(overrides: Mapping[str, Processor] | None = None) -> dict[str, Processor]:
    """The shipped table with a site's own entries in place of, or beside, the shipped ones."""
    return {**_shipped(), **{name.lower(): processor for name, processor in (overrides or {}).items()}}


def lookup(processors: Mapping[str, Processor], name: str) -> Processor | None:
    """The entry for a GPU type as the site spells it, or None where the table does not know it."""
    spelled = name.lower()
    if spelled.endswith(PART):
        all_of_it = lookup(processors, whole(spelled))
        return all_of_it and msgspec.structs.replace(
            all_of_it, tflops=all_of_it.tflops / SHARED_SLOWER, memory_gbs=all_of_it.memory_gbs / SHARED_SLOWER
        )
    if spelled in processors:
        return processors[spelled]
    if _SLICE.search(spelled):
        return None
    for part in _PARTS.split(spelled):
        if part != "cpu" and part in processors:
            return processors[part]
    return None


def speed(processor: Processor) -> float:
    """One number to compare types by: programs are bound by arithmetic or by memory, on the whole by both."""
    return float((processor.tflops * processor.memory_gbs) ** 0.5)
