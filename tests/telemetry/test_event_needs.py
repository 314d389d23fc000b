"""Which events an agent counts: those that the contention model needs of this processor, else the generic ones."""

import shutil

import pytest

from advisor.cli import event_needs
from advisor.telemetry.events import Cpu, Rotation, events_wanted

SKYLAKE = Cpu("GenuineIntel", 6, 85, 32, 4)


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
@pytest.mark.parametrize(
    ("identity", "among"),
    [("GenuineIntel-6-55-4", "CYCLE_ACTIVITY.STALLS_L3_MISS"), ("AuthenticAMD-25-1-0", "l2_pf_miss_l2_l3")],
)
def test_the_models_events_are_counted_in_groups_that_fit(monkeypatch, identity, among):
    monkeypatch.setenv("PERF_CPUID", identity)
    groups = event_needs.of_model("perf")(SKYLAKE)
    assert among in {event for group in groups for event in group.events}
    own = [group for group in groups if group.name.startswith("model")]
    assert own and all(len(group.events) <= SKYLAKE.counters for group in own)
    # All of them get their turn, software events are always there, and one yardstick is the same on every CPU.
    rotation = Rotation(groups)
    counted = {event for _ in groups for event in rotation.next()}
    assert {among, "task-clock", "cycles", "instructions", "cache-misses"} <= counted
    assert not [event for event in counted if event.startswith("UNC_") or "@" in event]


@pytest.mark.parametrize("perf", ["no-such-perf", "false"])
def test_where_that_cannot_be_told_the_generic_events_are_counted_and_that_is_said(perf, caplog):
    caplog.set_level("INFO")
    assert event_needs.of_model(perf)(SKYLAKE) == events_wanted(SKYLAKE)
    assert "the generic events are counted" in caplog.text
