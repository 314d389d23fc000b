"""Readers of workloads: SWF logs, Gavel traces, JSON lines, `sacct -P` text, and a synthetic generator.

`read_workload` finds the format from the file's name or its first line, or takes it from the caller.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from advisor.sim.workload import TraceError, Workload

FORMATS = ("swf", "gavel", "jsonl", "sacct", "synthetic")


def read_text(path: Path) -> str:
    """The file's text, unpacked where it is gzipped; raises `TraceError`."""
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        return raw.decode("utf-8")
    except OSError as error:
        raise TraceError(str(path), None, "file", f"cannot be read ({error.strerror or error})") from None
    except EOFError:
        raise TraceError(str(path), None, "file", "ends before its gzip stream does") from None
    except UnicodeDecodeError as error:
        raise TraceError(str(path), None, "file", f"is not UTF-8 text (byte {error.start})") from None


def find_format(path: Path, text: str) -> str:
    """Which reader a file needs: by its name, then by its first line that is not blank."""
    names = path.name.removesuffix(".gz")
    for suffix, found in ((".swf", "swf"), (".jsonl", "jsonl"), (".trace", "gavel"), (".sacct", "sacct")):
        if names.endswith(suffix):
            return found
    first = next((line for line in text.splitlines() if line.strip()), "")
    if first.startswith(";"):
        return "swf"
    if first.lstrip().startswith("{"):
        return "jsonl"
    if "|" in first:
        return "sacct"
    if first.count("\t") == 9:
        return "gavel"
    raise TraceError(
        str(path), 1, "format", "not known from the name or the first line; name it: " + ", ".join(FORMATS[:4])
    )


def read_workload(trace: str, throughputs: Path | None = None, form: str | None = None, seed: int = 0) -> Workload:
    """Reads a trace; `synthetic:jobs=1000,…` makes one (see `advisor.sim.traces.synthetic`)."""
    from advisor.sim.traces import gavel, jsonl, sacct, swf, synthetic

    if trace == "synthetic" or trace.startswith("synthetic:"):
        return synthetic.from_text(trace, seed)
    path = Path(trace)
    text = read_text(path)
    form = form or find_format(path, text)
    if form == "swf":
        return swf.parse(text, str(path))
    if form == "jsonl":
        return jsonl.parse(text, str(path))
    if form == "sacct":
        return sacct.parse(text, str(path))
    if form == "gavel":
        if throughputs is None:
            raise TraceError(str(path), None, "throughputs", "a Gavel trace needs its table: --throughputs FILE.json")
        return gavel.parse(text, gavel.read_throughputs(throughputs), str(path))
    raise TraceError(str(path), None, "format", f"{form!r} is none of {', '.join(FORMATS)}")
