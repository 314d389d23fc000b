"""The daemon's end of the log: a writer that has stopped is noticed although it reports no fault."""

import msgspec

from advisor import protocol
from advisor.policy.interface import Decision
from advisor.server import decision_log
from advisor.server.decision_log import DecisionLog
from advisor.settings import Log, Paths, Settings
from tests.server.daemons import submission, wait_until


def decision(token):
    return Decision(token, 1000.0, "keep", "shadow", False, "left alone: a test", "train", snapshot_taken_at=990.0)


def test_a_writer_that_writes_no_more_is_told_in_status(tmp_path, monkeypatch):
    log = DecisionLog(Settings(paths=Paths(database=str(tmp_path / "advisor.db"))))
    log.open()
    request = msgspec.json.decode(submission(), type=protocol.SubmitRequest)
    log.record(request, decision("a"), 100.0, "test")
    wait_until(log.drained)
    assert log.status(0).last_error is None
    log.close()  # the thread is gone, as after an error inside it
    log.record(request, decision("b"), 100.0, "test")
    assert not log.drained()
    assert log.status(0).last_error is None  # it may just be busy
    monkeypatch.setattr(decision_log, "STUCK_S", 0.0)
    assert "restart the daemon" in log.status(0).last_error


def test_a_reload_that_names_another_file_goes_on_there(tmp_path):
    first, second = (Settings(paths=Paths(database=str(tmp_path / name))) for name in ("one.db", "two.db"))
    log = DecisionLog(first)
    log.open()
    request = msgspec.json.decode(submission(), type=protocol.SubmitRequest)
    log.record(request, decision("a"), 100.0, "test")
    log.reopen(second)
    log.record(request, decision("b"), 100.0, "test")
    log.reopen(msgspec.structs.replace(second, log=Log(collect_s=5.0)))  # the same file: nothing to reopen
    wait_until(log.drained)
    assert log.status(0).written == 2
    assert log.close() == 0
    assert (tmp_path / "one.db").exists() and (tmp_path / "two.db").exists()
