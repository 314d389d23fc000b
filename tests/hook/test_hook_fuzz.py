"""Whatever bytes the daemon sends, the job is unchanged or changed as the contract allows."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hook_ends import PARTITIONS, UNCHANGED, Daemon, Outcome, Slurmctld, always
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from advisor import resources
from advisor.protocol import SETTABLE

json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)
values = st.sampled_from(["v100", "cpu,a100", "gres/gpu:v100:1", "", "secret", "\n"]) | json_values
replies = st.fixed_dictionaries(
    {},
    optional={
        "v": st.just(1) | json_values,
        "action": st.sampled_from(["keep", "rewrite"]) | json_values,
        "token": st.sampled_from(["t1", "a b"]) | json_values,
        "set": st.dictionaries(st.sampled_from([*SETTABLE, "script", "account"]), values, max_size=3) | json_values,
        "message": st.text(max_size=40) | json_values,
        "error": json_values,
    },
)
as_line = replies.map(lambda reply: json.dumps(reply).encode() + b"\n")
damaged = st.tuples(as_line, st.integers(0, 200), st.binary(max_size=4)).map(
    lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] :]
)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Slurmctld]]:
    folder = tmp_path_factory.mktemp("fuzz")
    daemon, slurmctld = Daemon(folder / "advisor.sock"), Slurmctld(resources.folder("slurm"))
    daemon.start()
    # The breaker must not end the test early; a reply without a newline must not cost much.
    slurmctld.configure(
        socket=str(daemon.path), timeout_ms=10, breaker_failures=1e9, disable_file=str(Path(folder, "disable"))
    )
    yield daemon, slurmctld
    slurmctld.end()
    daemon.stop()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reply=st.one_of(as_line, damaged, st.binary(max_size=300), st.binary(max_size=300).map(lambda b: b + b"\n")))
def test_any_reply_leaves_a_valid_job(ends: tuple[Daemon, Slurmctld], reply: bytes) -> None:
    daemon, slurmctld = ends
    daemon.behaviour = always(reply)
    assert_valid(slurmctld.submit())


def assert_valid(outcome: Outcome) -> None:
    """The job is as it was, or changed as the contract allows."""
    assert outcome.accepted
    changed = {name: value for name, value in outcome.fields.items() if UNCHANGED.get(name) != value}
    assert set(changed) <= {*SETTABLE, "admin_comment"}
    assert set(UNCHANGED) <= set(outcome.fields)  # nothing was cleared
    if "partition" in changed:
        assert set(changed["partition"].split(",")) <= set(PARTITIONS)
    for value in changed.values():
        assert value.isprintable()
    if "admin_comment" in changed:
        token = changed["admin_comment"].removeprefix("advisor=")
        assert outcome.environment == {"ADVISOR_TOKEN": token} and " " not in token
    else:
        assert outcome.environment == {}
    assert all("\n" not in text for text in outcome.told) and len(outcome.told) <= 1


sets = st.dictionaries(st.sampled_from([*SETTABLE, "script", "account"]), values, max_size=2) | json_values
answers = st.lists(st.sampled_from(["t1", "t2", "", "a b", 0, 1, 2, 3]) | json_values, max_size=12)
rows = st.fixed_dictionaries(
    {
        "sets": st.lists(sets, max_size=3) | json_values,
        "says": st.lists(st.text(max_size=40), max_size=3) | json_values,
    },
    optional={"answers": answers | json_values},
)
good_rows = st.fixed_dictionaries(
    {
        "sets": st.just([{"partition": "v100"}, {"partition": "cpu,a100", "tres_per_node": "gres/gpu:1"}]),
        "says": st.lists(st.text(max_size=40), min_size=2, max_size=2),
        "answers": st.lists(st.tuples(st.sampled_from(["t1", "t2"]), *(st.integers(0, 2),) * 2), max_size=4).map(
            lambda each: [value for answer in each for value in answer]
        ),
    }
)
heads = st.tuples(st.integers(0, 1), st.integers(0, 5), st.sampled_from([0, 7]), st.sampled_from([-1, 9, 99]))


class Prepares:
    """A daemon that keeps jobs as they are, and sends something prepared with every answer."""

    def __init__(self) -> None:
        self.row: dict[str, object] = {}
        self.later = self.count = self.follows = self.good_s = self.asked = 0
        self.cut: int | None = None

    def answer(self, peer: socket.socket, request: bytes) -> None:
        told = json.loads(request)
        if told["op"] != "submit":
            return
        self.asked += 1
        head = {"v": 1, "prepared": told["kind"], "after": self.asked + self.later, "count": self.count, "number": 7}
        head |= {"follows": self.follows, "until": round(time.time() + self.good_s, 3)}
        text = json.dumps({**head, **self.row}, separators=(",", ":")).encode()
        peer.sendall(b'{"v":1}\n' + text[: self.cut] + b"\n")


def test_any_row_that_is_prepared_leaves_valid_jobs(ends: tuple[Daemon, Slurmctld]) -> None:
    daemon, slurmctld = ends
    prepares = Prepares()
    daemon.behaviour = prepares.answer
    applied = 0

    @settings(max_examples=300, deadline=None)
    @given(row=good_rows | rows, head=heads, cut=st.none() | st.integers(0, 250))
    @example(
        row={"sets": [{"partition": "v100"}], "says": [], "answers": ["t1", 1, 0] * 4}, head=(0, 4, 0, 9), cut=None
    )
    def check(row: dict[str, object], head: tuple[int, int, int, int], cut: int | None) -> None:
        nonlocal applied
        slurmctld.configure(timeout_ms=5000)  # which begins anew
        prepares.row, prepares.cut, prepares.asked = row, cut, 0
        prepares.later, prepares.count, prepares.follows, prepares.good_s = head
        for _ in range(4):
            outcome = slurmctld.submit()
            assert_valid(outcome)
            applied += outcome.fields != UNCHANGED

    check()
    assert applied >= 3, "those of the example"
