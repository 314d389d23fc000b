"""Stands in for sacct: answers queries from a recording of a real one, the way Slurm answers them.

Rows come from `tests/data/slurm/RELEASE/sacct.txt` (`sacct -P -o ALL` on the mini-cluster, in UTC). As in slurmdbd, a
query by finished states returns the records that ended within the window, ends included.
"""

from datetime import UTC, datetime
from pathlib import Path

from advisor.cluster.types import SourceError

DATA = Path(__file__).resolve().parents[1] / "data" / "slurm"
RELEASES = ("22.05", "24.11", "26.05")
STATE_CODES = {
    "CD": "COMPLETED", "F": "FAILED", "TO": "TIMEOUT", "NF": "NODE_FAIL", "PR": "PREEMPTED", "CA": "CANCELLED",
    "OOM": "OUT_OF_MEMORY", "DL": "DEADLINE", "BF": "BOOT_FAIL", "RQ": "REQUEUED", "RS": "RESIZING", "RV": "REVOKED",
}  # fmt: skip
TIMES = ("Submit", "Eligible", "Start", "End")


def seconds(text):
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def recording(release):
    header, *lines = (DATA / release / "sacct.txt").read_text().splitlines()
    names = header.split("|")
    # A few recorded constraints hold the recording's own separator; those rows cannot be told apart.
    rows = [dict(zip(names, line.split("|"), strict=True)) for line in lines if line.count("|") == header.count("|")]
    for row in rows:
        row.update({name: str(seconds(row[name])) for name in TIMES if row[name][:1].isdigit()})
    return rows


class RecordedSacct:
    """A `run` for `collect`."""

    def __init__(self, rows):
        self.rows = rows
        self.windows = []
        self.fails_after = None  # calls that succeed before it fails
        self.cut = 0  # bytes missing at the end

    def __call__(self, *words):
        assert words[0] == "sacct"
        flags = {word for word in words if "=" not in word}
        options = dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)
        assert {"--allusers", "--duplicates", "--noheader", "--parsable2"} <= flags
        start, end = (int(options[name].removeprefix("uts")) for name in ("starttime", "endtime"))
        assert start <= end, "sacct refuses a start after the end"
        if self.fails_after is not None and len(self.windows) >= self.fails_after:
            raise SourceError("`sacct` failed with exit status 1: Problem talking to the database: Connection refused")
        self.windows.append((start, end))
        states = {STATE_CODES[code] for code in options["state"].split(",")}
        fields = options["format"].split(",")
        # Jobs are chosen; their steps come along, whatever their own state.
        chosen = {
            row["DBIndex"]
            for row in self.rows
            if "." not in row["JobID"]
            and row["State"].split()[0] in states
            and row["End"].isdigit()
            and start <= int(row["End"]) <= end
        }
        found = [
            options["delimiter"].join(row[field] for field in fields) + "\n"
            for row in self.rows
            if row["DBIndex"] in chosen and ("." not in row["JobID"] or "--allocations" not in flags)
        ]
        output = "".join(found).encode()
        return output[: len(output) - self.cut]
