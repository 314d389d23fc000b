"""Node lists and array task lists, in Slurm's own notation."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.cluster.hostlist import HostlistError, count_tasks, expand_hostlist

# What `scontrol show hostnames` of 22.05, 24.11 and 26.05 prints for each (22.05 knows no text after a bracket: "-ib").
AS_SLURM_EXPANDS = {
    "a[1-3,07-09]b[1-2],c": "a1b1 a1b2 a2b1 a2b2 a3b1 a3b2 a07b1 a07b2 a08b1 a08b2 a09b1 a09b2 c",
    "n[9-11]": "n9 n10 n11",
    "n[08-11]": "n08 n09 n10 n11",
    "n[001-3]": "n001 n002 n003",
    "n[5]": "n5",
    "x[1-2]y[3-4]": "x1y3 x1y4 x2y3 x2y4",
    "a[1]b[2]c[3-4]": "a1b2c3 a1b2c4",
    "n[0-1]x[00-01]": "n0x00 n0x01 n1x00 n1x01",
    "a[1-2]-ib": "a1-ib a2-ib",
    "n[1-3,2]": "n1 n2 n3 n2",
    "n[09-10],n[9-10]": "n09 n10 n9 n10",
    "a,,b": "a b",
    " a , b": "a b",
    "": "",
}


@pytest.mark.parametrize(("text", "expected"), AS_SLURM_EXPANDS.items())
def test_a_node_list_expands_as_scontrol_show_hostnames_does(text, expected):
    assert " ".join(expand_hostlist(text)) == expected


@pytest.mark.parametrize("text", ["n[10-9]", "n[1-2", "n1-2]", "n[a-b]", "n[]", "n[1,,2]", "n[[1]]", "n[1-]", "n[-1]"])
def test_what_slurm_refuses_is_refused_and_named(text):
    with pytest.raises(HostlistError, match=re.escape(text[:2])):
        expand_hostlist(text)


@pytest.mark.parametrize(
    "text", ["a[1-100001]", "a[1-999999999999]", "a[0-999]b[0-999]", "a[1-9]" * 12, "a," * 100_001]
)
def test_a_list_that_asks_for_too_much_is_refused_before_it_is_built(text):
    with pytest.raises(HostlistError, match="more than the allowed number"):
        expand_hostlist(text)


def test_a_list_of_exactly_the_limit_passes():
    assert len(expand_hostlist("a[1-10]", limit=10)) == 10
    with pytest.raises(HostlistError):
        expand_hostlist("a[1-11]", limit=10)


ranges = st.tuples(st.integers(0, 999), st.integers(0, 20), st.integers(1, 4)).map(lambda r: (r[0], r[0] + r[1], r[2]))


@given(st.lists(st.tuples(st.from_regex(r"[a-z]{1,4}", fullmatch=True), st.lists(ranges, min_size=1, max_size=3))))
def test_every_number_of_every_range_is_there_in_order(items):
    text = ",".join(
        f"{prefix}[{','.join(f'{low:0{width}d}-{high:0{width}d}' for low, high, width in parts)}]"
        for prefix, parts in items
    )
    expected = [
        f"{prefix}{number:0{width}d}"
        for prefix, parts in items
        for low, high, width in parts
        for number in range(low, high + 1)
    ]
    # A width below the number of digits does not pad, as in Slurm.
    assert list(expand_hostlist(text)) == expected


@given(st.text(alphabet="abn0123456789[],-: %x", max_size=40))
def test_no_text_does_anything_but_expand_or_be_refused(text):
    try:
        names = expand_hostlist(text)
    except HostlistError:
        return
    assert all("[" not in name and "," not in name and name for name in names)


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("7", 1),
        ("0-9", 10),
        ("0-9%2", 10),
        ("1,3,5-7", 5),
        ("0-40:2%2", 21),
        ("0-9:3,20%2", 5),
        ("1,3,5,7,...", 4),
        ("1,3,5,7,1...%4", 4),  # the 1 may be the beginning of 10: not counted
        ("...", 1),
        ("", 1),
        ("nonsense", 1),
        ("9-1", 1),
        ("0-9:0", 1),
    ],
)
def test_the_tasks_of_a_pending_array_are_counted(text, tasks):
    assert count_tasks(text) == tasks


@given(st.sets(st.integers(0, 5000), min_size=1), st.integers(0, 9))
def test_counting_tasks_agrees_with_listing_them(tasks, throttle):
    text = ",".join(map(str, sorted(tasks))) + (f"%{throttle}" if throttle else "")
    assert count_tasks(text) == len(tasks)


@given(st.text(max_size=60))
def test_any_task_list_counts_as_at_least_one(text):
    assert count_tasks(text) >= 1
