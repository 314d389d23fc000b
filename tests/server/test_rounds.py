"""What rounds do to pending jobs, and what they leave alone; a stand-in for scontrol shows every fault."""

import json
import sys
import time
from pathlib import Path

import msgspec
import pytest

from advisor.cluster.command import SlurmCommand
from advisor.cluster.gres import parse_gres
from advisor.cluster.types import Job
from advisor.performance.queue import build_snapshot
from advisor.server import frames
from advisor.server.rounds import acting, thread
from advisor.server.rounds.thread import Rounds as Thread
from advisor.settings import Experiment, Modes, Paths, Rounds, Settings, Slurm
from advisor.store import decisions, moves
from advisor.store.database import Database
from advisor.training.decision_rows import decision_row
from tests.policy.site import NODES, PARTITIONS, PAST, advise, state, submission
from tests.server.daemons import wait_until

# What the command line fixed may be overridden.
FLEXIBLE = {"ADVISOR_DFG": "flexible: [partition, gpu_type]"}
FAKE = Path(__file__).with_name("fake_scontrol.py")


class Site:
    """A log, a pretended Slurm and the thread that makes the rounds."""

    def __init__(self, folder, **more):
        self.folder = folder
        self.slurm = folder / "slurm.json"
        self.tell({})
        self.told = []
        given = {
            "paths": Paths(database=str(folder / "advisor.db"), disable=str(folder / "disable")),
            "slurm": Slurm(command=(sys.executable, str(FAKE), str(self.slurm)), source="commands", timeout_s=5.0),
            "modes": Modes(default="enforce"),
            "experiment": Experiment(holdout=0.0),
            "rounds": Rounds(every_s=0.05, min_gain_s=5.0, rest_s=1000.0),
        }
        self.settings = Settings(**(given | more))
        self.running = [busy(kind) for kind in ("v1", "p1", "p2", "k1", "k2")]
        self.pending = []
        self.history = PAST
        self.thread = None

    def tell(self, jobs, **more):
        self.slurm.write_text(json.dumps({"jobs": jobs, **more}))

    def asked(self):
        return json.loads(self.slurm.read_text()).get("_asked", [])

    def job(self, number):
        return json.loads(self.slurm.read_text())["jobs"][str(number)]

    def submit(self, number, settings=None, waited_s=10, **fields):
        """A job that went through the hook: its decision is in the log, and Slurm has it as it was decided."""
        request = submission(**{"partition": "v100", "environment": FLEXIBLE, **fields})
        snapshot = build_snapshot(self.state(), self.history)
        decision = advise(request, snapshot, settings or self.settings, now=time.time())
        token = f"t{number}"
        decision = msgspec.structs.replace(decision, token=token)
        with Database(self.settings.paths.database) as db:
            decisions.insert_many(db, [decision_row(request, decision, 1.0, "mini")])
        now = {**msgspec.to_builtins(request), **decision.set}
        partition = now.get("partition") or "cpu"
        job = Job(
            job_id=number,
            states=("PENDING",),
            name=request.name or "",
            user="ada",
            partitions=tuple(partition.split(",")),
            reason="Resources",
            priority=1000 - number,
            submit_time=int(time.time() - waited_s),
            time_limit=240,
            cpus=1,
            memory_mb=100,
            gres=parse_gres(now["tres_per_node"]),
            admin_comment=f"advisor={token}",
        )
        self.pending.append(job)
        jobs = json.loads(self.slurm.read_text())
        jobs["jobs"][str(number)] = {"Partition": partition, "TresPerNode": now["tres_per_node"]}
        self.slurm.write_text(json.dumps(jobs))
        return decision

    def change(self, number, **fields):
        """What somebody else did to the job, or how Slurm will behave."""
        jobs = json.loads(self.slurm.read_text())
        jobs["jobs"][str(number)] |= fields
        self.slurm.write_text(json.dumps(jobs))

    def free(self, *nodes):
        self.running = [job for job in self.running if job.nodes[0] not in nodes]

    def state(self):
        return msgspec.structs.replace(state(*self.running, *self.pending), taken_at=time.time())

    def rounds(self, count=1, polled=None):
        """Shows the poll to the thread and waits for whole rounds."""
        if self.thread is None:
            self.thread = Thread(self.told.append)
            self.thread.configure(self.settings)
        for _ in range(count):
            before = len(self.said(frames.Rounded, frames.Failed))
            facts = polled or self.state()
            self.thread.seen(facts, build_snapshot(facts, self.history))
            wait_until(lambda before=before: len(self.said(frames.Rounded, frames.Failed)) > before, seconds=30)

    def said(self, *kinds):
        return [message for message in self.told if isinstance(message, kinds)]

    def moves(self, *numbers):
        with Database(self.settings.paths.database) as db:
            found = moves.by_tokens(db, [f"t{number}" for number in numbers])
        return [row for number in numbers for row in found.get(f"t{number}", [])]


def busy(node, minutes=None):
    """A job that has the whole node for the next hours."""
    partition = next(p.name for p in PARTITIONS if node in p.nodes)
    minutes = minutes or {"v": 120, "p": 240, "k": 360}[node[0]]
    return Job(
        job_id=ord(node[0]) * 100 + int(node[1]),
        states=("RUNNING",),
        name=f"all-{node}",
        user="zoe",
        partitions=(partition,),
        start_time=int(time.time()) - 60,
        time_limit=minutes + 1,
        nodes=(node,),
        cpus=1,
        exclusive=True,
    )


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_a_pending_job_moves_to_where_it_ends_first(site):
    decision = site.submit(7)
    assert decision.eligible and decision.chosen == 0
    site.rounds()
    assert not site.moves(7), "it waits where it is expected to end first"
    site.free("p1", "p2")
    site.rounds()
    (move,) = site.moves(7)
    assert (move.from_place, move.to_place, move.outcome) == ("keep", "p100/p100", "ok")
    assert move.gain_s > 3600 and "sooner" in move.why and move.probability == 1.0
    assert site.job(7)["Partition"] == "p100"
    assert site.said(frames.Rounded)[-1].outcomes == {"place": {"ok": 1}}


def test_a_job_that_was_sent_to_a_node_that_is_drained_now_does_not_wait_for_it(site):
    """Its user had named another partition, in which it would have started without the advisor."""
    site.free("v1", "p1", "p2")
    sent = site.submit(1, partition="p100,v100", environment={})
    assert sent.set == {"partition": "v100"}
    drained = tuple(msgspec.structs.replace(n, states=("IDLE", "DRAIN")) if n.name == "v1" else n for n in NODES)
    site.rounds(polled=msgspec.structs.replace(site.state(), nodes=drained))
    assert "p100" in site.job(1)["Partition"]
    assert [(move.outcome, move.from_place) for move in site.moves(1)] == [("ok", "v100/v100")]


def test_each_job_finds_those_before_it_and_no_others_ahead(site):
    # The v100s are free in a quarter of an hour, two p100s now; a run takes about 20 minutes on either.
    site.running[0] = busy("v1", minutes=15)
    for number in range(10, 16):
        site.submit(number, partition="v100")
    site.free("p1")
    site.rounds()
    assert [move.job_id for move in site.moves(*range(10, 16))] == [10, 11, 14, 15]


def test_no_more_jobs_move_in_a_round_than_the_site_allows(site):
    site.settings = msgspec.structs.replace(
        site.settings, rounds=msgspec.structs.replace(site.settings.rounds, most_moves=1)
    )
    for number in (10, 11):
        site.submit(number)
    site.free("p1")
    site.rounds()
    assert [move.job_id for move in site.moves(10, 11)] == [10]


def _held(site):
    site.pending[0] = msgspec.structs.replace(site.pending[0], priority=0, reason="JobHeldUser")


def _begun(site):
    site.pending[0] = msgspec.structs.replace(site.pending[0], array_job_id=7, array_task="1-3", tasks=3)


def _changed(site):
    site.pending[0] = msgspec.structs.replace(site.pending[0], partitions=("k80",))


STAYS = {
    "fixed by its user": ({"environment": {}}, None),
    "in the control group": ({"holdout": 1.0}, None),
    "submitted in shadow, enforced now": ({"mode": "shadow"}, None),
    "held": ({}, _held),
    "array of which tasks have begun": ({"array": "0-3"}, _begun),
    "moved by somebody else": ({}, _changed),
}


@pytest.mark.parametrize("case", STAYS)
def test_jobs_that_are_not_the_advisors_to_move_stay(site, case):
    fields, change = STAYS[case]
    fields = dict(fields)
    how = msgspec.structs.replace(
        site.settings,
        experiment=Experiment(holdout=fields.pop("holdout", 0.0)),
        modes=Modes(default=fields.pop("mode", "enforce")),
    )
    site.submit(7, how, **fields)
    if change is not None:
        change(site)
    site.free("p1", "p2")
    site.rounds()
    assert not [move for move in site.moves(7) if move.outcome != "would"]
    assert not any("update" in words for words in site.asked())


def test_in_shadow_it_is_only_logged_and_once(tmp_path):
    site = Site(tmp_path, modes=Modes(default="shadow"))
    site.submit(7)
    site.free("p1", "p2")
    site.rounds(3)
    (move,) = site.moves(7)
    assert (move.mode, move.outcome) == ("shadow", "would")
    assert not site.asked(), "Slurm is not even asked"


def test_levers_that_are_off_move_nothing(tmp_path):
    site = Site(tmp_path, levers=())
    site.submit(7)
    site.free("p1", "p2")
    site.thread = Thread(site.told.append)
    site.thread.configure(site.settings)
    site.thread.seen(site.state(), build_snapshot(site.state(), PAST))
    time.sleep(0.3)
    assert not site.told and not site.asked()


FAULTS = {
    "it started in between": ({"_starts": True}, "refused", "v100"),
    "it was held in between": ({"Priority": "0"}, "refused", "v100"),
    "a reservation was set in between": ({"Reservation": "keepout"}, "refused", "v100"),
    "it names nodes by now": ({"ReqNodeList": "v1"}, "refused", "v100"),
    "it became part of a het job": ({"_het": True}, "refused", "v100"),
    "somebody else changed its GPUs": ({"TresPerNode": "gres/gpu:2"}, "refused", "v100"),
    "Slurm says yes and does nothing": ({"_lies": True}, "refused", "v100"),
    "Slurm refuses": ({"_refuses": "Partition"}, "refused", "v100"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_happens_the_job_is_where_it_was_or_where_it_was_to_go(site, fault):
    fields, outcome, partition = FAULTS[fault]
    site.submit(7)
    site.change(7, **fields)
    site.free("p1", "p2")
    site.rounds(2)
    (move,) = site.moves(7)
    assert (move.outcome, site.job(7)["Partition"]) == (outcome, partition)
    assert move.said


def test_an_update_that_slurm_took_by_half_is_taken_back(site):
    site.tell({"7": {"Partition": "v100", "TresPerNode": "gres/gpu:1", "_refuses": "TresPerNode"}})
    before = {"partition": "v100", "tres_per_node": "gres/gpu:1"}
    after = {"partition": "short", "tres_per_node": "gres/gpu:p100:1"}
    slurm = SlurmCommand(site.settings.slurm.command, 20.0)
    # The stand-in refuses the GPUs of the way back as well, which the job never lost.
    result = acting.move(slurm, 7, before, after)
    assert result.outcome == "half done" and "could not be taken back" in result.said
    site.tell({"7": {"Partition": "v100", "TresPerNode": "gres/gpu:1", "_refuses_once": "TresPerNode"}})
    result = acting.move(slurm, 7, before, after)
    assert result.outcome == "undone" and "Invalid Trackable RESource" in result.said
    assert site.job(7)["Partition"] == "v100"


def test_a_job_that_is_gone_is_counted_as_refused(site):
    site.submit(7)
    site.tell({})
    site.free("p1", "p2")
    site.rounds()
    (move,) = site.moves(7)
    assert move.outcome == "refused" and "does not know" in move.said


@pytest.mark.parametrize("how", ["down", "hangs"])
def test_where_slurm_does_not_answer_the_round_ends_and_that_is_said_once(site, how):
    if how == "hangs":
        site.settings = msgspec.structs.replace(
            site.settings, slurm=msgspec.structs.replace(site.settings.slurm, timeout_s=0.2)
        )
    for number in (7, 8):
        site.submit(number)
    jobs = json.loads(site.slurm.read_text())
    site.slurm.write_text(json.dumps({**jobs, f"_{how}": True}))
    site.free("p1", "p2")
    site.rounds()
    wait_until(lambda: site.said(frames.Failed))
    assert len(site.moves(7, 8)) == 1, "one that Slurm does not answer for is enough"
    (said,) = site.said(frames.Failed)
    assert said.what == "rounds" and "scontrol" in said.error


def test_old_facts_and_the_disable_file_move_nothing(site):
    site.submit(7)
    site.free("p1", "p2")
    old = msgspec.structs.replace(site.state(), taken_at=time.time() - 1000)
    site.rounds(polled=old)
    assert "too old" in site.said(frames.Failed)[-1].error
    (site.folder / "disable").touch()
    site.rounds()
    wait_until(lambda: "disable" in site.said(frames.Failed)[-1].error)
    assert not site.moves(7) and not site.asked()
    (site.folder / "disable").unlink()
    site.rounds()
    wait_until(lambda: site.said(frames.Recovered))
    assert [move.outcome for move in site.moves(7)] == ["ok"]


def test_a_restarted_daemon_knows_from_the_log_what_was_moved(site):
    site.submit(7)
    site.free("p1", "p2")
    site.rounds()
    assert site.job(7)["Partition"] == "p100"
    # A poll shows it there; then the v100 is free, too, but it was moved a moment ago.
    site.pending[0] = msgspec.structs.replace(site.pending[0], partitions=("p100",))
    site.running.append(busy("p1"))
    site.running.append(busy("p2"))
    site.free("v1")
    again = Site(site.folder)
    again.slurm, again.pending, again.running = site.slurm, site.pending, site.running
    site.tell({"7": {"Partition": "p100", "TresPerNode": "gres/gpu:1"}})
    again.rounds()
    assert len(again.moves(7)) == 1, "it rests"
    last = Site(site.folder, rounds=Rounds(every_s=0.05, min_gain_s=5.0, rest_s=0.0))
    last.pending, last.running = site.pending, site.running
    last.tell({"7": {"Partition": "p100", "TresPerNode": "gres/gpu:1"}})
    last.rounds()
    assert [(move.from_place, move.to_place) for move in last.moves(7)][1:] == [("p100/p100", "keep")]


def test_a_user_who_lost_the_right_to_a_partition_is_not_sent_there(site):
    site.submit(7)
    site.free("p1", "p2")
    state = site.state()
    shut = tuple(
        msgspec.structs.replace(each, allow_accounts=("biology",)) if each.name == "p100" else each
        for each in state.partitions
    )
    site.rounds(polled=msgspec.structs.replace(state, partitions=shut))
    assert not site.moves(7)


def test_a_request_that_a_shell_would_read_is_never_written(site):
    site.submit(7, tres_per_node="gres/gpu:1,gres/odd$(id):1")
    site.free("p1", "p2")
    site.rounds()
    assert not any("update" in words for words in site.asked())


def test_a_queue_that_has_not_changed_is_not_planned_again(site, monkeypatch):
    looks = []
    real = thread.look

    def counted(*words):
        if site.settings in words:
            looks.append(words)
        return real(*words)

    monkeypatch.setattr(thread, "look", counted)
    site.submit(7)
    site.rounds(3)
    assert len(looks) == 1 and len(site.said(frames.Rounded)) >= 3
    site.free("p1")
    site.rounds()
    assert len(looks) > 1 and site.moves(7)
