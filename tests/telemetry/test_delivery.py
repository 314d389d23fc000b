"""Samples reach the summaries once each: with a daemon that is away, batches sent twice, reboots and wrong clocks."""

import json
import threading

import pytest

from advisor.telemetry import spool as spools
from advisor.telemetry import wire
from advisor.telemetry.courier import Clocks, Courier
from advisor.telemetry.munge import MungeCommands, MungeError, MungeLibrary
from advisor.telemetry.spool import Spool
from tests.telemetry.ports import Munged

NOW = 1_800_000_000.0
PERIOD = 10.0


class Node:
    """A compute node with an agent, whose clocks a test turns; what it measures is known."""

    def __init__(self, folder, port, munge, name="n1", off=0.0, **options):
        self.folder, self.port, self.munge, self.name, self.off = folder, port, munge, name, off
        self.options = options
        self.boots = 0
        self.uptime = 0.0
        self.truth = []  # of every sample that was made, the time it was made, by the daemon's clock
        self.boot()

    def boot(self):
        self.boots += 1
        self.uptime = 100.0
        self.start_agent()

    def start_agent(self):
        boot = f"boot-{self.name}-{self.boots}"
        run = f"{boot}.{int(self.uptime * 1e9)}"
        self.spool = Spool(self.folder / self.name, boot, run, **self.options)
        clocks = Clocks(lambda: self.port.now + self.off, lambda: self.uptime)
        self.courier = Courier(self.spool, self.munge, self.port.address, self.name, boot, clocks, "mini", 5.0)

    def period(self, job=12):
        self.port.now += PERIOD
        self.uptime += PERIOD
        self.truth.append(self.port.now)
        value = float(len(self.truth))
        self.spool.add(
            {
                "t": self.port.now + self.off,
                "b": self.uptime,
                "dt": PERIOD,
                "jobs": [{"job": job, "m": {"cpu.user": value, "perf.cycles": [value, 10.0, 5.0]}}],
                "node": {"memory": value},
            }
        )


@pytest.fixture
def port(make_port):
    return make_port(now=NOW)


@pytest.fixture
def node(tmp_path, port, munged):
    return Node(tmp_path, port, munged.munge())


def stored(port, metric="cpu.user"):
    """How many samples of a metric are in the jobs' summaries, and their sum."""
    ((count, total),) = port.rows("SELECT sum(n), sum(n * mean) FROM job_summaries WHERE metric = ?", metric)
    return count or 0, total or 0.0


def all_of(node):
    return len(node.truth), pytest.approx(sum(range(1, len(node.truth) + 1)))


def test_an_hour_without_the_daemon_loses_nothing(node, port):
    for _ in range(6):
        node.period()
    assert node.courier.deliver()
    port.stop()
    for index in range(360):
        node.period()
        if index % 36 == 0:
            assert not node.courier.deliver()
    port.start()
    node.period()
    assert node.courier.deliver()
    assert stored(port) == all_of(node)
    assert node.spool.waiting() == 0
    # Filed when they were made, not when they arrived.
    ((first, last, seconds),) = port.rows("SELECT first_at, last_at, seconds FROM job_nodes")
    assert (first, last, seconds) == (node.truth[0], node.truth[-1], 367 * PERIOD)
    hours = dict(port.rows("SELECT start, n FROM node_counters"))
    expected: dict[int, int] = {}
    for at in node.truth:
        hour = int(at - PERIOD / 2) // 3600 * 3600
        expected[hour] = expected.get(hour, 0) + 1
    assert hours == expected and len(hours) >= 2


def test_a_batch_whose_answer_was_lost_is_sent_again_and_counted_once(node, port):
    for _ in range(5):
        node.period()
    segment = node.spool.oldest()
    body = wire.pack(node.courier._batch(segment))
    assert port.send(wire.frame(node.munge.encode(wire.sealed(body)), body)).new == 5
    # The agent never heard that: the segment still waits, and more was measured.
    node.period()
    assert node.courier.deliver()
    assert stored(port) == all_of(node)
    assert (port.status().samples, port.status().duplicates) == (6, 5)


def test_the_same_batch_many_times_and_at_once_is_counted_once(node, port):
    for _ in range(20):
        node.period()
    segment = node.spool.oldest()
    body = wire.pack(node.courier._batch(segment))
    frames = [wire.frame(node.munge.encode(wire.sealed(body)), body) for _ in range(12)]
    threads = [threading.Thread(target=port.send, args=(frame,)) for frame in frames]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stored(port) == all_of(node)
    assert port.status().duplicates == 11 * 20


def test_a_rebooted_node_delivers_what_it_measured_before(node, port):
    for _ in range(7):
        node.period()
    port.now += 300
    node.boot()
    for _ in range(4):
        node.period()
    assert node.courier.deliver()
    assert stored(port) == all_of(node)
    ((first, last),) = port.rows("SELECT first_at, last_at FROM job_nodes")
    assert (first, last) == (pytest.approx(node.truth[0]), pytest.approx(node.truth[-1]))
    assert len(port.rows("SELECT * FROM received_samples")) == 2


def test_an_agent_that_is_started_again_begins_new_numbers_and_loses_none(node, port):
    node.period()
    node.period()
    node.uptime += 1
    node.start_agent()
    node.period()
    assert node.courier.deliver()
    assert stored(port) == all_of(node)


def test_nodes_whose_clocks_are_a_minute_apart_agree_on_when(tmp_path, port, munged):
    slow = Node(tmp_path, port, munged.munge(), "slow", off=-60.0)
    fast = Node(tmp_path, port, munged.munge(), "fast", off=60.0)
    for _ in range(3):
        slow.period()
        fast.period()
    slow.boot()  # what it measured before the reboot is dated by its own clock alone
    slow.period()
    assert slow.courier.deliver() and fast.courier.deliver()
    times = {name: (first, last) for name, first, last in port.rows(
        "SELECT a.node, j.first_at, j.last_at FROM job_nodes AS j JOIN agent_nodes AS a ON a.id = j.node"
    )}  # fmt: skip
    for one in (slow, fast):
        assert times[one.name] == (pytest.approx(one.truth[0]), pytest.approx(one.truth[-1]))
    assert stored(port)[0] == 7


def test_all_of_it_together(tmp_path, port, munged):
    """Daemon away, duplicates, a reboot, clocks apart, segments out of order."""
    node = Node(tmp_path, port, munged.munge(), off=60.0, segment=700)
    for step in range(60):
        node.period()
        if step == 20:
            port.stop()
        elif step == 30:
            node.boot()
        elif step == 45:
            port.start()
        elif step % 7 == 0:
            node.courier.deliver()
        if step in (10, 50):
            segment = node.spool.oldest()
            if segment is not None:
                body = wire.pack(node.courier._batch(segment))
                port.send(wire.frame(node.munge.encode(wire.sealed(body)), body))
    assert node.courier.deliver()
    assert stored(port) == all_of(node)
    assert stored(port, "perf.cycles")[0] == 60
    ((enabled, running),) = port.rows("SELECT enabled_s, running_s FROM job_summaries WHERE metric = 'perf.cycles'")
    assert (enabled, running) == (600.0, 300.0)


def test_a_full_spool_drops_the_oldest_and_counts_them(tmp_path, port, munged):
    node = Node(tmp_path, port, munged.munge(), limit=20_000, segment=2_000)
    for _ in range(400):
        node.period()
    assert node.spool.waiting() <= 22_000
    assert node.spool.dropped > 100
    assert node.courier.deliver()
    count, _ = stored(port)
    assert count + node.spool.dropped == 400
    ((last,),) = port.rows("SELECT last_at FROM job_nodes")
    assert last == node.truth[-1]


def test_a_line_that_a_crash_cut_short_costs_that_sample_only(node, port):
    for _ in range(3):
        node.period()
    (path,) = (node.folder / "n1").iterdir()
    path.write_text(path.read_text()[:-20])
    assert node.courier.deliver()
    assert stored(port)[0] == 2


def test_a_segment_of_garbage_does_not_block_the_rest(node, port):
    (node.folder / "n1" / "0.jsonl").write_bytes(b"\x00\xff nonsense\n")
    node.period()
    assert node.courier.deliver()
    assert stored(port)[0] == 1 and node.spool.waiting() == 0


def test_a_batch_too_large_for_the_daemon_goes_in_pieces(tmp_path, make_port, munged):
    port = make_port(now=NOW, max_batch_mb=0.0005)
    node = Node(tmp_path, port, munged.munge())
    for _ in range(60):
        node.period()
    for _ in range(20):
        if node.courier.deliver():
            break
    assert stored(port) == all_of(node)


def test_a_daemon_that_refuses_is_asked_less_and_less_often(node, port):
    port.stop()
    node.period()
    pauses = []
    for _ in range(8):
        assert not node.courier.deliver()
        pauses.append(node.courier.pause_s(60.0))
    port.start()
    assert pauses[0] >= 60 * 0.8 and 240 <= pauses[-1] <= 360
    assert node.courier.deliver()
    assert node.courier.pause_s(60.0) <= 72


def test_samples_wait_while_credentials_cannot_be_checked(tmp_path, make_port, munged):
    port = make_port(now=NOW)
    port.port._checker = MungeLibrary(str(tmp_path / "no-munged"))
    node = Node(tmp_path, port, munged.munge())
    node.period()
    assert not node.courier.deliver()
    assert port.status().refused == {"busy": 1}
    port.port._checker = munged.munge()
    assert node.courier.deliver() and stored(port)[0] == 1


def test_samples_wait_while_the_database_cannot_be_written(tmp_path, port, munged):
    node = Node(tmp_path, port, munged.munge())
    node.period()
    port.database.mkdir()
    assert not node.courier.deliver()
    assert "advisor.db" in port.status().error
    port.database.rmdir()
    assert node.courier.deliver()
    assert port.status().error is None and stored(port)[0] == 1


def test_both_ways_to_munge_understand_each_other(tmp_path, munged):
    library = munged.munge()
    socket = ("--socket", munged.socket)
    commands = MungeCommands(("munge", *socket), ("unmunge", *socket))
    for maker, reader in ((library, commands), (commands, library)):
        credential = maker.encode(b"payload\n\nwith lines")
        assert reader.decode(credential).payload == b"payload\n\nwith lines"
        with pytest.raises(MungeError, match=r"(?i)replayed"):
            reader.decode(credential)
    stranger = Munged(tmp_path / "elsewhere")
    try:
        foreign = stranger.munge().encode(b"x")
    finally:
        stranger.stop()
    for reader in (library, commands):
        with pytest.raises(MungeError):
            reader.decode(foreign)
        with pytest.raises(MungeError):
            reader.decode(b"garbage")


def test_the_name_of_a_boot_comes_from_the_kernel():
    assert len(spools.boot_id()) == 36
    assert spools.new_run("b", iter([1, 2]).__next__) == "b.1"


def test_a_spool_on_a_full_disk_is_no_end(tmp_path, caplog):
    spool = Spool(tmp_path / "s", "b", "b.1")
    (tmp_path / "s").rmdir()
    (tmp_path / "s").write_text("not a folder")
    spool.add({"t": 1.0})
    assert spool.dropped == 1
    assert "could not be kept" in caplog.text


def test_samples_are_numbered_in_their_segment(tmp_path):
    spool = Spool(tmp_path / "s", "b", "b.1")
    for _ in range(3):
        spool.add({"t": 1.0})
    segment = spool.oldest()
    assert [sample["n"] for sample in segment.samples] == [0, 1, 2]
    assert (segment.boot, segment.run) == ("b", "b.1")
    spool.add({"t": 2.0})
    assert len(list((tmp_path / "s").iterdir())) == 2  # what is being sent is not written to
    assert json.loads(segment.path.read_text().splitlines()[0]) == {"boot": "b", "run": "b.1"}
