"""What the daemon and its collector say to each other survives any cut, and nonsense is recognised."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.performance.queue import build_snapshot
from advisor.performance.snapshot import RunTimes
from advisor.server import frames
from advisor.settings import Settings
from tests.server.daemons import cluster

MESSAGES = [
    frames.Polled(build_snapshot(cluster(taken_at=1000.0), {}), "recorded", 0.25),
    frames.History({"resnet": {"v100": RunTimes(3, 8.5, 0.1)}}, last=True),
    frames.Failed("poll", "`scontrol` failed: é"),
    frames.Recovered("poll"),
    frames.Lost(3),
    frames.Collected(12.5),
]


@given(st.lists(st.integers(0, 4000), max_size=20))
def test_messages_arrive_whole_however_the_pipe_cuts_them(cuts):
    whole = b"".join(frames.encode(message) for message in MESSAGES)
    edges = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    reader = frames.from_collector()
    heard = [message for a, b in itertools.pairwise(edges) for message in reader.feed(whole[a:b])]
    assert heard == MESSAGES


def test_settings_reach_the_collector_as_they_are():
    reader = frames.to_collector()
    said = [frames.Configure(Settings()), frames.Drained(5.0)]
    assert list(reader.feed(b"".join(map(frames.encode, said)))) == said


@pytest.mark.parametrize("nonsense", [b"\xff" * 64, b"\x00\x00\x00\x05hello", b"\x00\x00\x00\x01\xc1"])
def test_bytes_that_are_no_frames_are_refused(nonsense):
    with pytest.raises(frames.FrameError):
        list(frames.from_collector().feed(nonsense))
