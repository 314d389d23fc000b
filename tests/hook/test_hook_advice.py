"""What a user's job looks like after the hook, when the daemon is well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hook_ends import PARTITIONS, REWRITE, UNCHANGED, Daemon, Slurmctld, always, line

import advisor
from advisor.protocol import SETTABLE, Reply, SubmitRequest


def test_keep_leaves_every_field_alone(daemon: Daemon, slurmctld: Slurmctld) -> None:
    daemon.behaviour = always(msgspec.json.encode(Reply(v=1)) + b"\n")
    outcome = slurmctld.submit()
    assert outcome.accepted
    assert outcome.fields == UNCHANGED
    assert outcome.environment == {}
    assert (outcome.told, outcome.logged) == ([], [])


def test_keep_with_a_token_marks_the_job_and_nothing_else(daemon: Daemon, slurmctld: Slurmctld) -> None:
    daemon.behaviour = always(msgspec.json.encode(Reply(v=1, token="01J-x_y.z")) + b"\n")
    outcome = slurmctld.submit(environment={"HOME": "/home/alice"})
    assert outcome.fields == {**UNCHANGED, "admin_comment": "advisor=01J-x_y.z"}
    assert outcome.environment == {"HOME": "/home/alice", "ADVISOR_TOKEN": "01J-x_y.z"}


@pytest.mark.parametrize("field", SETTABLE)
def test_each_field_that_may_change_is_set_as_the_daemon_spells_it(
    daemon: Daemon, slurmctld: Slurmctld, field: str
) -> None:
    value = "v100,a100" if field == "partition" else "gres:gpu:a100:2,gres:shard:3"
    daemon.behaviour = always(msgspec.json.encode(Reply(v=1, action="rewrite", set={field: value})) + b"\n")
    assert slurmctld.submit().fields == {**UNCHANGED, field: value}


def test_a_rewrite_sets_all_fields_and_tells_the_user_one_line(daemon: Daemon, slurmctld: Slurmctld) -> None:
    daemon.behaviour = always(line({**REWRITE, "message": "moved to v100:\nstarts 100% sooner\x1b[2J %s"}))
    outcome = slurmctld.submit()
    assert outcome.fields == {
        **UNCHANGED,
        "partition": "v100",
        "tres_per_node": "gres/gpu:v100:1",
        "admin_comment": "advisor=t1",
    }
    assert outcome.told == ["moved to v100: starts 100% sooner [2J %s"]


def test_what_the_site_wrote_into_admin_comment_stays(daemon: Daemon, slurmctld: Slurmctld) -> None:
    daemon.behaviour = always(line(REWRITE))
    outcome = slurmctld.submit({**UNCHANGED, "admin_comment": "project=42"})
    assert outcome.fields["admin_comment"] == "project=42 advisor=t1"


def test_null_in_a_reply_is_the_same_as_absent(daemon: Daemon, slurmctld: Slurmctld) -> None:
    daemon.behaviour = always(b'{"v":1,"token":null,"action":null,"set":null,"message":null,"error":null}\n')
    outcome = slurmctld.submit()
    assert outcome.accepted and outcome.fields == UNCHANGED and outcome.told == []
    # It was a good answer: three such in a row do not open the breaker.
    assert slurmctld.submit(times=5).logged == [] and len(daemon.requests) == 6


def test_a_refused_request_leaves_the_job_alone_and_the_breaker_closed(daemon: Daemon, slurmctld: Slurmctld) -> None:
    daemon.behaviour = always(line({**REWRITE, "error": "name: not text"}))
    outcome = slurmctld.submit(times=10)
    assert outcome.fields == UNCHANGED and outcome.logged == []
    assert len(daemon.requests) == 10


def test_srun_and_salloc_get_advice_but_their_environment_is_never_touched(
    daemon: Daemon, slurmctld: Slurmctld
) -> None:
    daemon.behaviour = always(line(REWRITE))
    outcome = slurmctld.submit({"name": "bash", "user_id": 1001})
    assert outcome.fields["partition"] == "v100" and outcome.environment is None
    assert outcome.logged == []  # slurmctld would log a line if it were asked for
    assert daemon.last_request["batch"] is False


@pytest.mark.parametrize("field", ["partition", "tres_per_node", "admin_comment", "environment"])
def test_if_slurmctld_refuses_one_field_the_job_is_as_it_was(daemon: Daemon, slurmctld: Slurmctld, field: str) -> None:
    daemon.behaviour = always(line({**REWRITE, "message": "moved"}))
    before = {**UNCHANGED, "admin_comment": "project=42"}
    outcome = slurmctld.submit(before, refuses=field)
    assert outcome.accepted
    assert outcome.fields == before and outcome.environment == {}
    assert outcome.told == []
    assert len(outcome.logged) == 1 and f"refused: {field}" in outcome.logged[0]


def test_a_job_that_cannot_be_read_passes(daemon: Daemon, slurmctld: Slurmctld) -> None:
    outcome = slurmctld.submit(unreadable="dependency")
    assert outcome.accepted and outcome.fields == UNCHANGED
    assert daemon.requests == []
    assert len(outcome.logged) == 1 and "unreadable: dependency" in outcome.logged[0]
    assert slurmctld.submit(unreadable="dependency", times=20).logged == []  # one line, not one a job


def test_the_disable_file_works_from_the_next_submission_on(
    daemon: Daemon, slurmctld: Slurmctld, tmp_path: Path
) -> None:
    daemon.behaviour = always(line(REWRITE))
    (tmp_path / "disable").touch()
    off = slurmctld.submit(times=3)
    assert off.fields == UNCHANGED and daemon.requests == []
    assert len(off.logged) == 1
    (tmp_path / "disable").unlink()
    on = slurmctld.submit()
    assert on.fields["partition"] == "v100"
    assert len(on.logged) == 1


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "kept").touch()


def _link(path: Path) -> None:
    path.with_name("elsewhere").write_text("kept")
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.write_text("kept"), _folder, _link])
def test_whatever_stands_in_the_disable_files_place_switches_off_and_is_still_there_after(
    daemon: Daemon, slurmctld: Slurmctld, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    daemon.behaviour = always(line(REWRITE))
    make(tmp_path / "disable")

    def listed() -> list[tuple[str, int]]:
        return sorted((str(path), path.lstat().st_mtime_ns) for path in tmp_path.rglob("*"))

    before = listed()
    assert slurmctld.submit(times=3).fields == UNCHANGED and daemon.requests == []
    assert listed() == before


@pytest.mark.parametrize("make", [None, lambda path: path.symlink_to("nowhere"), "in a folder that is a file"])
def test_without_a_disable_file_jobs_are_asked_about_whatever_its_folder_is(
    daemon: Daemon, slurmctld: Slurmctld, tmp_path: Path, make: Callable[[Path], None] | str | None
) -> None:
    daemon.behaviour = always(line(REWRITE))
    if callable(make):
        make(tmp_path / "disable")
    elif make:
        (tmp_path / "file").touch()
        slurmctld.configure(disable_file=str(tmp_path / "file" / "disable"))
    else:
        slurmctld.configure(disable_file=str(tmp_path / "no" / "such" / "disable"))
    assert slurmctld.submit().fields["partition"] == "v100"


def test_another_disable_file_holds_as_soon_as_it_is_configured(
    daemon: Daemon, slurmctld: Slurmctld, tmp_path: Path
) -> None:
    daemon.behaviour = always(line(REWRITE))
    (tmp_path / "another").touch()
    slurmctld.configure(disable_file=str(tmp_path / "another"))
    assert slurmctld.submit().fields == UNCHANGED
    (tmp_path / "another").unlink()
    assert slurmctld.submit().fields["partition"] == "v100"


def test_while_it_is_switched_off_an_absent_daemon_is_not_missed(
    daemon: Daemon, slurmctld: Slurmctld, tmp_path: Path
) -> None:
    daemon.stop()
    (tmp_path / "disable").touch()
    off = slurmctld.submit(times=10)
    assert off.fields == UNCHANGED
    assert len(off.logged) == 1 and "off" in off.logged[0]


@pytest.mark.parametrize("module", ["socket", "socket.unix", "cjson"])
def test_without_a_lua_module_one_line_is_logged_and_jobs_pass(
    daemon: Daemon, start_slurmctld: Callable[..., Slurmctld], module: str
) -> None:
    slurmctld = Slurmctld(Path(advisor.__file__).parent.parent / "slurm", module)
    try:
        logged = slurmctld.configure(socket=str(daemon.path))  # what loading has logged comes with it
        assert len(logged) == 1 and f"module '{module}' not found" in logged[0] and "lua-socket" in logged[0]
        outcome = slurmctld.submit(times=5)
        assert outcome.accepted and outcome.fields == UNCHANGED and outcome.logged == []
    finally:
        slurmctld.end()
    assert daemon.requests == []


def test_a_broken_log_does_not_hurt_the_job(daemon: Daemon, slurmctld: Slurmctld, tmp_path: Path) -> None:
    slurmctld.break_log()
    daemon.behaviour = always(line({**REWRITE, "message": "moved"}))
    assert slurmctld.submit().fields["partition"] == "v100"
    (tmp_path / "disable").touch()
    assert slurmctld.submit().accepted
    (tmp_path / "disable").unlink()
    daemon.behaviour = always(b"garbage\n")
    outcome = slurmctld.submit(times=5)
    assert outcome.accepted and outcome.fields == UNCHANGED


def test_a_setting_that_cannot_be_is_logged_and_ignored(slurmctld: Slurmctld, daemon: Daemon) -> None:
    logged = slurmctld.configure(timeout_ms=-5, sokket="/x", breaker_failures="many")
    assert sorted(text.split()[-1] for text in logged) == ["breaker_failures", "sokket", "timeout_ms"]
    slurmctld.submit()
    assert len(daemon.requests) == 1


HOSTILE = [
    "'; DROP TABLE decision; --",
    "$(reboot) `reboot` ; reboot & | > /etc/passwd",
    'quote " backslash \\ slash / percent %s %n %d',
    "newline\nin\r\nthe middle\ttab \x01\x1f\x7f",
    "b\udcff\udcfe invalid \udcc3( utf-8",  # surrogates: raw bytes
    "grüße 日本語 🚀 \udce2\udc82",  # valid, then cut in a character
    "%z[%w^$()%.*+-?",
]


@pytest.mark.parametrize("text", HOSTILE, ids=["sql", "shell", "quotes", "control", "bytes", "cut", "pattern"])
def test_hostile_text_in_every_field_arrives_as_text(daemon: Daemon, slurmctld: Slurmctld, text: str) -> None:
    names = ["account", "qos", "name", "partition", "tres_per_node", "features", "comment", "extra", "licenses"]
    fields: dict[str, Any] = dict.fromkeys(names, text) | {"user_id": 1001, "script": "#ADVISOR " + text + "\n"}
    daemon.behaviour = always(line(REWRITE))
    outcome = slurmctld.submit(fields, environment={"ADVISOR_DFG": text})
    assert outcome.accepted and outcome.fields["partition"] == "v100"
    request = msgspec.json.decode(daemon.requests[-1], type=SubmitRequest)
    if any("\udc80" <= letter <= "\udcff" for letter in text):
        expected = "".join(letter if letter < "\x80" else "?" * _bytes(letter) for letter in text)
    else:
        expected = text
    assert {getattr(request, name) for name in names} == {expected}
    assert request.environment == {"ADVISOR_DFG": expected}
    assert request.script_head is not None
    assert request.script_head.startswith("#ADVISOR " + expected.split("\n")[0])


def _bytes(letter: str) -> int:
    return len(letter.encode("utf-8", "surrogateescape"))


def test_valid_utf8_is_passed_on_unchanged(daemon: Daemon, slurmctld: Slurmctld) -> None:
    for text in ("é", "ࠀ", "퟿", "﷐", "𐀀", "\U0010ffff", "aé日🚀z" * 100):
        slurmctld.submit({**UNCHANGED, "comment": text})
        assert daemon.last_request["comment"] == text


@pytest.mark.parametrize("field", [*SETTABLE, "features"])
def test_a_job_whose_request_would_be_cut_is_not_asked_about(daemon: Daemon, slurmctld: Slurmctld, field: str) -> None:
    daemon.behaviour = always(line(REWRITE))
    before = {**UNCHANGED, field: "x" * 4097}
    assert slurmctld.submit(before).fields == before
    assert daemon.requests == []
    slurmctld.submit({**UNCHANGED, field: "x" * 4096})
    assert len(daemon.last_request[field]) == 4096


def test_long_texts_are_cut(daemon: Daemon, slurmctld: Slurmctld) -> None:
    slurmctld.submit({**UNCHANGED, "name": "n" * 5000, "comment": "c" * 70000}, {"ADVISOR_DFG": "d" * 70000})
    request = daemon.last_request
    assert len(request["name"]) == 4096
    assert len(request["comment"]) == len(request["environment"]["ADVISOR_DFG"]) == 65536


def test_a_request_that_the_daemon_would_refuse_for_its_size_is_not_sent(daemon: Daemon, slurmctld: Slurmctld) -> None:
    grows_sixfold = "\x01" * 65536
    fields = {**UNCHANGED, "comment": grows_sixfold, "extra": grows_sixfold, "script": "#" + grows_sixfold}
    outcome = slurmctld.submit(fields, {"ADVISOR_DFG": grows_sixfold}, times=5)
    assert outcome.accepted and daemon.requests == []
    slurmctld.submit()  # and nobody else's advice suffers
    assert len(daemon.requests) == 1


@pytest.mark.parametrize(
    ("script", "head"),
    [
        (
            "#!/bin/sh\n#ADVISOR app: x\n\n  \t\n  # note\nsrun x\n#ADVISOR off\n",
            "#!/bin/sh\n#ADVISOR app: x\n\n  \t\n  # note\n",
        ),
        ("#!/bin/sh\r\n#ADVISOR off\r\n\r\necho\r\n", "#!/bin/sh\r\n#ADVISOR off\r\n\r\n"),
        ("#!/bin/sh\n#ADVISOR off", "#!/bin/sh\n#ADVISOR off"),
        ("#!/bin/sh\nsecret --password hunter2\n", "#!/bin/sh\n"),
        ("secret --password hunter2\n#ADVISOR off\n", None),
        ("#a\n   ", "#a\n   "),
        ("", None),
        ("#" + "x" * 70000 + "\n", "#" + "x" * 65535),
        ("#!/bin/sh\n" + "x" * (4 << 20), "#!/bin/sh\n"),
        (" " * (4 << 20), " " * 65536),
    ],
)
def test_only_the_leading_comment_block_of_the_script_leaves_slurmctld(
    daemon: Daemon, slurmctld: Slurmctld, script: str, head: str | None
) -> None:
    slurmctld.submit({**UNCHANGED, "script": script})
    assert daemon.last_request.get("script_head") == head
    assert daemon.last_request["batch"] is True


def test_partition_limits_are_read_again_soon_but_rights_at_every_submission(
    daemon: Daemon, slurmctld: Slurmctld
) -> None:
    slurmctld.submit()
    fewer = {"cpu": PARTITIONS["cpu"]}
    slurmctld.submit(partitions=fewer)
    assert [limits["name"] for limits in daemon.last_request["partitions"]] == ["cpu"]
    daemon.behaviour = always(line(REWRITE))
    assert slurmctld.submit(partitions=fewer).fields == UNCHANGED  # v100 is not this user's
    slurmctld.submit(partitions={})
    assert daemon.last_request["partitions"] == []


def test_the_hook_and_the_package_have_one_version(slurmctld: Slurmctld) -> None:
    text = (Path(advisor.__file__).parent.parent / "slurm" / "advisor.lua").read_text()
    assert f'VERSION = "{advisor.__version__}"' in text
    assert slurmctld._ask({"configure": {}})["version"] == advisor.__version__
