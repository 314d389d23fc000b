"""Text and JSON of one cluster agree; older shapes are read; what is cut or garbled is refused, never misread."""

import json
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.cluster import v22_05, v24_11, v26_05
from advisor.cluster.commands_source import JSON, JSON_26_05, TEXT, adapter_for
from advisor.cluster.types import SourceError
from tests.cluster.conftest import RECORDINGS

ADAPTERS = {"24.11": v24_11, "26.05": v26_05}
WHAT = ("node", "partition", "job")


def recorded(release, name):
    return (RECORDINGS / release / name).read_bytes()


def facts(records):
    """As dictionaries by name or id, a job's states as far as one word of text can tell."""
    found = {}
    for record in records:
        fields = msgspec.structs.asdict(record)
        if "job_id" in fields:
            fields["states"] = fields["states"][0]
        found[fields.get("job_id", fields["name"])] = fields
    return found


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("kind", ["scontrol", "odd"])
def test_text_and_json_of_the_same_cluster_tell_the_same(kind, what):
    text = facts(getattr(v22_05, f"{what}s")([recorded("24.11", f"{kind}_show_{what}.txt")]))
    told = facts(getattr(v24_11, f"{what}s")([recorded("24.11", f"{kind}_show_{what}.json")]))
    if what == "partition":  # the JSON of 24.11 does not tell it
        assert [name for name, fields in text.items() if fields.pop("default")] == ["cpu"]
        assert not any(fields.pop("default") for fields in told.values())
    assert told == text


@pytest.mark.parametrize("what", WHAT)
def test_text_and_json_of_26_05_tell_the_same(what):
    text = facts(getattr(v22_05, f"{what}s")([recorded("26.05", f"scontrol_show_{what}.txt")]))
    assert facts(getattr(v26_05, f"{what}s")([recorded("26.05", f"scontrol_show_{what}.json")])) == text


@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_squeue_json_gives_the_jobs_of_scontrol(release):
    jobs = ADAPTERS[release].jobs
    assert (
        facts(jobs([recorded(release, "squeue.json")])).keys()
        == facts(jobs([recorded(release, "scontrol_show_job.json")])).keys()
    )


def plain(value):
    """Slurm's {"set", "infinite", "number"} as the plain numbers that 23.02 used for times."""
    if isinstance(value, dict):
        if value.keys() == {"set", "infinite", "number"}:
            return value["number"] if value["set"] else 0
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def test_the_shapes_of_23_02_are_read_too():
    """There a state is one word, times are plain numbers, and a job's allocation names its nodes in a string."""
    text = recorded("24.11", "scontrol_show_job.json")
    new = facts(v24_11.jobs([text]))
    answer = json.loads(text)
    for job in answer["jobs"]:
        for key in ("submit_time", "eligible_time", "start_time"):
            job[key] = plain(job[key])
        job["job_state"] = job["job_state"][-1]
        job["job_resources"] = {"nodes": job["nodes"]}
        job["exclusive"], job["oversubscribe"] = "", False
    old = facts(v24_11.jobs([json.dumps({"meta": {}, "errors": [], "jobs": answer["jobs"]}).encode()]))
    assert old == new


def test_an_answer_without_records_is_an_empty_cluster_not_an_error():
    assert v24_11.jobs([b'{"jobs": [], "errors": []}']) == ()
    assert v22_05.jobs([b"No jobs in the system\n"]) == ()
    assert v22_05.nodes([b""]) == ()


@pytest.mark.parametrize("release", ["24.11", "26.05"])
@pytest.mark.parametrize("kind", ["scontrol", "odd"])
@pytest.mark.parametrize("what", WHAT)
def test_json_that_arrives_in_pieces_is_read_like_json_in_one(release, kind, what):
    text = recorded(release, f"{kind}_show_{what}.json")
    read = getattr(ADAPTERS[release], f"{what}s")
    whole = read([text])
    compact = json.dumps(json.loads(text.decode("utf-8", "replace"))).encode()
    assert read([compact]) == whole
    dice = random.Random(7)
    for _ in range(20):
        size = dice.choice([1, 7, 61, 997, 65536]) if len(text) < 50_000 else dice.choice([997, 65536])
        assert read([text[at : at + size] for at in range(0, len(text), size)]) == whole


ADAPTED = {
    f"{what} of {release}": (read, recorded(release, f"odd_show_{what}.{ending}"))
    for what in WHAT
    for release, read, ending in (
        ("22.05", getattr(v22_05, f"{what}s"), "txt"),
        ("24.11", getattr(v24_11, f"{what}s"), "json"),
        ("26.05", getattr(v26_05, f"{what}s"), "json"),
    )
}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(ADAPTED)), st.floats(0, 1))
def test_an_answer_that_is_cut_gives_a_part_of_the_truth_or_an_error(adapted, share):
    read, text = ADAPTED[adapted]
    whole = {repr(record) for record in read([text])}
    try:
        found = read([text[: int(len(text) * share)]])
    except SourceError:
        return
    # Text may be cut within the last record's last fields; every record before it is as it was.
    assert {repr(record) for record in found[:-1]} <= whole


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(ADAPTED)), st.data())
def test_a_garbled_answer_raises_nothing_but_a_source_error(adapted, data):
    read, text = ADAPTED[adapted]
    garbled = bytearray(text)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(garbled) - 1))
        garbled[at : at + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=20))
    try:
        read([bytes(garbled)])
    except SourceError as error:
        assert str(error)


@settings(deadline=None)
@given(st.sampled_from(sorted(ADAPTED)), st.binary(max_size=200))
def test_bytes_that_are_no_answer_at_all_are_refused(adapted, text):
    try:
        found = ADAPTED[adapted][0]([text])
    except SourceError as error:
        assert str(error)
    else:
        assert found == ()


@pytest.mark.parametrize(
    "number", ['"9"', "1e300", "-1", "null", '{"set": true, "infinite": true, "number": 4}', "[1]"]
)
def test_a_number_of_a_shape_nobody_expects_is_read_or_refused(number):
    text = b'{"jobs": [{"job_id": 1, "job_state": ["PENDING"], "priority": %s}]}' % number.encode()
    try:
        (job,) = v24_11.jobs([text])
    except SourceError:
        assert number == "[1]"
    else:
        assert isinstance(job.priority, int)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["RUNNING"], "RUNNING"),
        (["COMPLETED", "COMPLETING"], "COMPLETING"),
        (["PENDING", "REQUEUED"], "PENDING"),
        (["RUNNING", "CONFIGURING", "POWER_UP_NODE"], "CONFIGURING"),
        (["REQUEUE_HOLD"], "PENDING"),
        (["STOPPED"], "RUNNING"),
        (["COMPLETED"], None),
        (["OUT_OF_MEMORY"], None),
        (["PENDING", "REVOKED"], None),
        ([], None),
    ],
)
def test_the_state_that_counts_comes_first_and_finished_jobs_are_dropped(words, first):
    text = json.dumps({"jobs": [{"job_id": 1, "job_state": words}]}).encode()
    assert [job.states[0] for job in v24_11.jobs([text])] == ([first] if first else [])


def test_gres_that_accounting_does_not_track_are_added_up_from_the_request():
    job = {
        "job_id": 1,
        "job_state": ["PENDING"],
        "tres_req_str": "cpu=8,mem=4G,node=2,billing=8",
        "tres_per_node": "gres/gpu:v100:2,gres/shard:1",
        "tres_per_task": "cpu=2,gres/tmp=3",
        "tasks": {"set": True, "infinite": False, "number": 4},
    }
    (found,) = v24_11.jobs([json.dumps({"jobs": [job]}).encode()])
    assert [(g.name, g.count, g.type) for g in found.gres] == [
        ("gpu", 4, "v100"),
        ("shard", 2, None),
        ("tmp", 12, None),
    ]


@pytest.mark.parametrize(
    ("release", "adapter"),
    [
        ((21, 8), TEXT),
        ((22, 5), TEXT),
        ((23, 2), JSON),
        ((23, 11), JSON),
        ((25, 11), JSON),
        ((26, 5), JSON_26_05),
        ((27, 11), JSON_26_05),
    ],
)
def test_each_release_is_read_in_its_shape(release, adapter):
    assert adapter_for(release) is adapter
