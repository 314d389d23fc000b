"""perf's output of three releases is understood, and nothing it could print breaks the agent."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from advisor.telemetry import perf

DATA = Path(__file__).resolve().parents[1] / "data" / "perf"
RELEASES = ("6.1", "6.12", "7.2")
EVENTS = [
    "task-clock", "context-switches", "cpu-migrations", "page-faults", "minor-faults", "major-faults",
    "instructions", "cycles", "cache-misses",
]  # fmt: skip
HARDWARE = {"instructions", "cycles", "cache-misses"}


def read(release, name):
    return perf.parse((DATA / release / name).read_text(), ",")


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("release", RELEASES)
class TestEachRelease:
    def test_a_command_has_its_counts_and_the_reason_for_each_missing_one(self, release, form):
        readings = read(release, f"command.{form}.txt")
        assert [r.event for r in readings] == EVENTS
        for reading in readings:
            if reading.event in HARDWARE:
                assert (reading.value, reading.missing) == (None, "not supported")
            else:
                assert reading.missing is None and reading.value >= 0
                assert 0 < reading.running_ns == reading.enabled_ns < 1e9
        assert readings[0].unit == "msec" and 0 < readings[0].value < 100
        assert 40 < readings[3].value < 200  # page faults of `sleep`

    def test_each_cgroup_has_its_own_counts(self, release, form):
        readings = read(release, f"cgroups.{form}.txt")
        busy = {r.event: r for r in readings if r.cgroup == "mini/slurmstepd.scope/job_7"}
        idle = {r.event: r for r in readings if r.cgroup == "mini/slurmstepd.scope/job_8"}
        assert list(busy) == list(idle) == EVENTS
        assert busy["page-faults"].value > 1000
        assert {r.missing for e, r in idle.items() if e not in HARDWARE} == {"not counted"}
        assert {r.missing for e, r in idle.items() if e in HARDWARE} == {"not supported"}

    def test_a_process_that_slept_was_not_counted(self, release, form):
        readings = read(release, f"idle_process.{form}.txt")
        assert {r.missing for r in readings} == {"not counted", "not supported"}
        assert all(r.running_ns == r.enabled_ns == 0 for r in readings)

    def test_groups_and_intervals_are_read_like_the_rest(self, release, form):
        assert [r.event for r in read(release, f"group.{form}.txt")] == [
            "task-clock", "page-faults", "context-switches", "instructions",
        ]  # fmt: skip
        assert len(read(release, f"interval.{form}.txt")) == 9

    def test_the_whole_node_is_counted(self, release, form):
        readings = {r.event: r for r in read(release, f"node.{form}.txt")}
        assert readings["task-clock"].value > 100  # two processors for a tenth of a second


def test_a_multiplexed_event_keeps_its_time_enabled_and_its_time_running():
    readings = {r.event: r for r in perf.parse((DATA / "multiplexed.json.txt").read_text())}
    assert readings["cycles"].value == 3166127511
    assert readings["cycles"].running_ns == 1332800000
    assert readings["cycles"].enabled_ns == pytest.approx(2.0194e9, rel=1e-3)
    assert readings["cpu_atom/branch-misses/"].missing == "not counted"
    # perf rounds a share below one percent down to nothing, which is not "never".
    assert readings["cpu/event=0xd1,umask=0x20/"].enabled_ns == pytest.approx(200 * 1990000)


def test_the_separator_of_the_agent_leaves_raw_events_whole():
    text = (DATA / "multiplexed.csv.txt").read_text()
    # As `-x ;` prints the same: only the commas between the columns differ.
    raw = "cpu/event=0xd1,umask=0x20/"
    text = text.replace(raw, "RAW").replace(",", ";").replace("RAW", raw)
    readings = {r.event: r for r in perf.parse(text, ";")}
    assert readings[raw].value == 1021
    assert readings["cycles"].running_ns == 1332800000
    assert readings["cycles"].enabled_ns == pytest.approx(1332800000 / 0.66)
    assert readings["cache-references"].enabled_ns == pytest.approx(668000000 / 0.33)
    assert readings["cache-misses"].missing == "not counted"
    assert readings["stalled-cycles-backend"].missing == "not supported"
    assert len(readings) == 7  # the line of a metric alone is no reading


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("no_such_event", "unknown event"),
        ("no_such_cgroup", "gone"),
        ("no_such_process", "gone"),
        ("paranoid", "no permission"),
        ("seccomp", "no permission"),
    ],
)
def test_what_perf_complains_of_is_told_apart(release, file, kind):
    text = (DATA / release / f"{file}.txt").read_text()
    assert perf.parse(text, ",") == []
    found, sentence = perf.complaint(text)
    assert found == kind
    assert len(sentence) > 10


def test_counts_are_no_complaint():
    assert perf.complaint((DATA / "6.1" / "command.csv.txt").read_text()) is None


cells = st.one_of(
    st.sampled_from(
        ["<not counted>", "<not supported>", "cycles", "msec", "", "100.00", "12345", "1e999", "nan", "-3"]
    ),
    st.text(max_size=12),
)
lines = st.one_of(
    st.text(max_size=80),
    st.lists(cells, max_size=9).map(",".join),
    st.dictionaries(
        st.sampled_from(["counter-value", "event", "unit", "cgroup", "event-runtime", "pcnt-running", "x"]), cells
    ).map(lambda d: str(d).replace("'", '"')),
)


@given(st.lists(lines, max_size=12).map("\n".join))
@example('{"counter-value" : "1", "event" : "e", "event-runtime" : 1e400, "pcnt-running" : 100.00}')
@example("[" * 100_000)
@example("{" * 100_000)
@example('{"counter-value":[],"event":{},"event-runtime":null}')
def test_garbage_never_raises_and_what_is_read_is_sound(text):
    for reading in perf.parse(text, ","):
        assert reading.event
        assert (reading.value is None) == (reading.missing is not None)
        assert 0 <= reading.running_ns <= reading.enabled_ns < float("inf")
    perf.complaint(text)


@given(st.data())
def test_output_cut_off_anywhere_is_read_up_to_there(data):
    whole = (DATA / "6.12" / "cgroups.csv.txt").read_text()
    cut = data.draw(st.integers(0, len(whole)))
    readings = perf.parse(whole[:cut], ",")
    assert [r.event for r in readings[:-1]] == [r.event for r in perf.parse(whole, ",")][: max(0, len(readings) - 1)]
