"""slurmdbd is down for a while: told for as long as it is, and not as a new fault each minute."""

import sys

import msgspec
import pytest

from advisor.cluster.command import SlurmCommand
from advisor.cluster.types import SourceError
from advisor.server import bookkeeping, frames
from advisor.settings import Log, Paths, Settings, Slurm

REFUSED = (
    "import sys; sys.exit('sacct: error: failed to open persistent connection to host:db:6819: Connection refused')"
)


def test_that_outcomes_cannot_be_collected_stays_told_until_they_are(tmp_path, monkeypatch):
    told: list[object] = []
    books = bookkeeping.Bookkeeper(told.append)
    settings = Settings(
        paths=Paths(database=str(tmp_path / "advisor.db")),
        slurm=Slurm(command=(sys.executable, "-c", REFUSED), source="commands"),
        log=Log(collect_s=60.0),
    )
    said = lambda: [m for m in told if isinstance(m, frames.Failed | frames.Recovered) and m.what == "collect"]  # noqa: E731
    for _ in range(3):
        books._work(settings)
    assert [type(message) for message in said()] == [frames.Failed], "not yet tried again is not well again"
    books._next_collect = 0.0
    books._work(settings)
    first, second = said()
    assert first == second, "the same fault in the same words, so that it is logged once"
    books._next_collect = 0.0
    monkeypatch.setattr(bookkeeping.sacct, "collect", lambda *words: None)
    books._work(msgspec.structs.replace(settings))
    assert isinstance(said()[-1], frames.Recovered)


def test_a_fault_of_accounting_names_slurmdbd_and_not_a_line_of_options():
    slurm = SlurmCommand((sys.executable, "-c", REFUSED), 20.0)
    with pytest.raises(SourceError) as raised:
        slurm.run("sacct", "--allusers", "--duplicates", "--local", "--noheader", "--delimiter=secret")
    assert "Is slurmdbd running" in str(raised.value)
    assert "secret" not in str(raised.value)
