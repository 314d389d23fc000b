"""Whatever bytes the daemon sends, the job is unchanged or changed as the contract allows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hook_ends import PARTITIONS, UNCHANGED, Daemon, Slurmctld, always
from hypothesis import HealthCheck, given, settings
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
    outcome = slurmctld.submit()
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
