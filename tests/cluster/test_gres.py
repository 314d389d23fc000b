"""Every spelling of gres, read and written back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.cluster.gres import gpu_request, parse_gres, parse_memory, parse_tres, with_type
from advisor.cluster.types import Gres


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu:v100:2(S:0-1),shard:8", (Gres("gpu", 2, "v100"), Gres("shard", 8))),
        ("gpu:v100:1(IDX:0)", (Gres("gpu", 1, "v100"),)),
        ("gpu:k80:2(IDX:0,3),shard:k80:2(2/4,0/4)", (Gres("gpu", 2, "k80"), Gres("shard", 2, "k80"))),
        ("gpu:k80:0(IDX:N/A),shard:k80:0(0/4,0/4)", ()),
        ("gpu:a100:4(S:0-3),gpu:a100:4(S:4-7)", (Gres("gpu", 8, "a100"),)),
        ("gpu:3g.20gb:2,gpu:1g.5gb", (Gres("gpu", 1, "1g.5gb"), Gres("gpu", 2, "3g.20gb"))),
        ("craynetwork:4K", (Gres("craynetwork", 4096),)),
        ("lustre:no_consume:10", (Gres("lustre", 10),)),
        ("gpu", (Gres("gpu", 1),)),
        ("gpu:2", (Gres("gpu", 2),)),
        ("gres:gpu:1", (Gres("gpu", 1),)),
        ("gres:gpu:v100:1", (Gres("gpu", 1, "v100"),)),
        ("gres/gpu:2", (Gres("gpu", 2),)),
        ("gres/gpu:v100=2", (Gres("gpu", 2, "v100"),)),
        ("cpu=2,gres/gpu=1", (Gres("gpu", 1),)),
        ("cpu=2,license/matlab=1", ()),
        ("(null)", ()),
        ("", ()),
        (None, ()),
        ("N/A", ()),
    ],
)
def test_gres_is_read_in_every_spelling(text, expected):
    assert parse_gres(text) == expected


def test_gpus_that_accounting_lists_twice_are_counted_once():
    tres = parse_tres("cpu=4,mem=8G,node=1,billing=4,gres/gpu=2,gres/gpu:v100=2")
    assert (tres.cpus, tres.memory_mb, tres.nodes) == (4, 8192, 1)
    assert tres.gres == (Gres("gpu", 2, "v100"),)


def test_gpus_of_a_type_that_accounting_does_not_track_stay_untyped():
    assert parse_tres("gres/gpu=4,gres/gpu:v100=1").gres == (Gres("gpu", 3), Gres("gpu", 1, "v100"))


@pytest.mark.parametrize(
    ("text", "mb"),
    [("100M", 100), ("8G", 8192), ("1.50T", 1572864), ("2048K", 2), ("512", 512), ("62.50G", 64000), ("0", 0)],
)
def test_memory_is_read_in_mb(text, mb):
    assert parse_memory(text) == mb


@pytest.mark.parametrize("text", ["", "8X", "-1G", "1e9", "UNLIMITED", "9" * 40])
def test_what_is_no_memory_size_is_none(text):
    assert parse_memory(text) is None


# The field as Slurm's clients fill it → with the type set. 22.05 writes gres:, 24.11 and 26.05 gres/, and from
# 23.11 --gpus-per-task comes with an equals sign, beside cpu= where -c was given.
SPELLINGS = {
    "gres:gpu:1": "gres:gpu:v100:1",
    "gres:gpu": "gres:gpu:v100",
    "gres/gpu:2": "gres/gpu:v100:2",
    "gres/gpu": "gres/gpu:v100",
    "gres/gpu=2": "gres/gpu:v100=2",
    "gpu:1": "gpu:v100:1",
    "cpu=2,gres/gpu=1": "cpu=2,gres/gpu:v100=1",
    "gres/gpu:1,gres/shard:2": "gres/gpu:v100:1,gres/shard:2",
    "gres:lic:3,gres:gpu:4,gres:tmp": "gres:lic:3,gres:gpu:v100:4,gres:tmp",
    # `flexible: [gpu_type]` may replace a type.
    "gres/gpu:p100:2": "gres/gpu:v100:2",
    "gres/gpu:p100=2": "gres/gpu:v100=2",
    "gres:gpu:p100": "gres:gpu:v100",
    "gres/shard:2": "gres/shard:2",
    "cpu=4": "cpu=4",
}


@pytest.mark.parametrize(("before", "after"), SPELLINGS.items())
def test_a_type_is_added_in_the_same_spelling(before, after):
    assert with_type(before, "v100") == after
    count, kind = gpu_request(after)
    assert count == gpu_request(before)[0]
    assert kind == ("v100" if count else None)


def test_a_request_without_a_count_means_one():
    assert gpu_request("gres:gpu") == (1, None)
    assert gpu_request("gres/gpu:v100") == (1, "v100")


def test_a_request_for_two_types_is_seen_as_such_and_not_rewritten():
    assert gpu_request("gres/gpu:v100:1,gres/gpu:p100:2") == (3, "p100,v100")
    with pytest.raises(ValueError, match="more than once"):
        with_type("gres/gpu:v100:1,gres/gpu:p100:2", "k80")


@pytest.mark.parametrize("kind", ["", "2", "4K", "a,b", "a:b", "a=b", "a b", "x\n"])
def test_a_type_that_slurm_would_misread_is_refused(kind):
    with pytest.raises(ValueError, match="not a GPU type"):
        with_type("gres/gpu:1", kind)


gpu_types = st.from_regex(r"[a-z][a-z0-9_.-]{0,8}", fullmatch=True)
others = st.lists(st.sampled_from(["cpu=2", "gres/shard:2", "license/x=1", "gres:tmp:4G", "gres/mps=50"]), max_size=3)


@given(
    prefix=st.sampled_from(["gres:", "gres/", ""]),
    mark=st.sampled_from([":", "="]),
    count=st.none() | st.integers(1, 999),
    old=st.none() | gpu_types,
    new=gpu_types,
    before=others,
    after=others,
)
def test_setting_a_type_keeps_the_count_and_everything_else(prefix, mark, count, old, new, before, after):
    token = f"{prefix}gpu" + (f":{old}" if old else "") + (f"{mark}{count}" if count else "")
    value = ",".join([*before, token, *after])
    changed = with_type(value, new)
    assert gpu_request(changed) == (count or 1, new)
    tokens = changed.split(",")
    assert tokens[: len(before)] == before
    assert tokens[len(before) + 1 :] == after
    assert with_type(changed, new) == changed
    if old:
        assert with_type(changed, old) == value
    assert [g for g in parse_gres(changed) if g.name != "gpu"] == [g for g in parse_gres(value) if g.name != "gpu"]


@given(st.text(alphabet="gresgpu:/=,()0123456789kKMG v1.", max_size=40))
def test_no_text_breaks_the_parsers(text):
    parse_gres(text)
    parse_tres(text)
    parse_memory(text)
    gpu_request(text)
    try:
        changed = with_type(text, "v100")
    except ValueError:
        return
    assert gpu_request(changed)[1] in (None, "v100")
