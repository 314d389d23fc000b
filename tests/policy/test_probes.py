"""Jobs sent to learn: of one app on one processor one at a time, since two would tell the same."""

import math
import random
import time

import msgspec
import pytest

from advisor.performance.snapshot import RunTimes
from advisor.performance.waits import Ledger
from advisor.policy.decision import Site, consider_at
from advisor.policy.interface import Prediction
from advisor.policy.probes import Probes
from advisor.policy.registry import make_policy
from advisor.server.preparing import Preparing
from advisor.settings import Explore
from tests.policy import site


def unsure(seconds, apart):
    return RunTimes(3, math.log(seconds), 0.4, True, 0.0, 0.0, 0.3, apart)


HISTORY = {"train": {"v100": unsure(1000, 0.4), "p100": unsure(1050, 0.4), "k80": unsure(6000, 0.05)}}


class Cluster:
    """Jobs of one app that all ask at an idle cluster, one after the other."""

    def __init__(self, holdout=0.0):
        config = site.settings("enforce", holdout, explore=Explore(max_regret=0.2))
        self.tokens = 0
        self.history = HISTORY
        self.probes = Probes()
        self.site = Site(make_policy(config), config, random.Random(1), self.token, probes=self.probes)

    def token(self):
        self.tokens += 1
        return f"token-{self.tokens}"

    def submits(self, later=0.0, **fields):
        snapshot = site.snapshot(history=self.history)
        request = site.submission(partition="v100,p100,k80", **fields)
        ledger = Ledger(snapshot)
        now = site.NOW + later
        return consider_at(self.site, request, msgspec.structs.replace(snapshot, taken_at=now), ledger, now).complete()

    def learners(self, count, **fields):
        decisions = [self.submits(**fields) for _ in range(count)]
        return [d for d in decisions if d.chosen != d.preferred and not d.holdout]


def test_no_second_job_of_an_app_is_sent_to_learn_what_the_first_one_has_not_told_yet():
    cluster = Cluster()
    assert len(cluster.learners(60)) == 1
    after = cluster.submits()
    assert after.probabilities[after.preferred] == 1.0


def test_without_a_memory_of_them_many_would_be():
    cluster = Cluster()
    cluster.site = msgspec.structs.replace(cluster.site, probes=None)
    assert len(cluster.learners(60)) > 5


def test_once_it_has_told_something_or_is_long_overdue_another_may_go():
    cluster = Cluster()
    cluster.learners(60)
    cluster.history = {"train": HISTORY["train"] | {"p100": unsure(1050, 0.3), "v100": unsure(1000, 0.3)}}
    assert cluster.learners(60)
    cluster = Cluster()
    cluster.learners(60)
    assert cluster.learners(60, later=3 * 1100.0)


def test_another_app_may_learn_at_the_same_time():
    cluster = Cluster()
    cluster.history = HISTORY | {"other": HISTORY["train"]}
    cluster.learners(60)
    assert len(cluster.learners(60, name="other")) == 1


@pytest.mark.parametrize("fields", [{"op": "advise"}])
def test_a_question_what_would_be_sends_nobody(fields):
    cluster = Cluster()
    assert len(cluster.learners(60, **fields)) > 5


def test_of_answers_prepared_in_a_row_none_comes_after_one_that_is_sent_to_learn():
    cluster = Cluster()
    snapshot, request = site.snapshot(history=HISTORY), site.submission(partition="v100,p100,k80")
    snapshot = msgspec.structs.replace(snapshot, taken_at=time.time())
    ended = False
    for _ in range(20):
        preparing = Preparing(cluster.site, snapshot, Ledger(snapshot), pytest.fail)
        preparing.take(request)
        (first,) = preparing.answers()
        row = preparing.row(first)
        assert (row is None) == first.verdict.to_learn
        for _ in range(0 if row is None else 6):
            if row.next().verdict.to_learn:
                assert row.over
                ended = True
                break
    assert ended


def test_what_is_remembered_is_bounded():
    probes = Probes()
    for number in range(6000):
        probes.send(f"app-{number}", Prediction(1, 0.0, 100.0, processor="v100", apart_log=0.3), float(number))
    asked = [Prediction(0, 0.0, 100.0, pool=0, processor="p100"), Prediction(1, 0.0, 1.0, pool=1, apart_log=0.3)]
    asked[1] = msgspec.structs.replace(asked[1], processor="v100")
    assert [each.pool for each in probes.open("app-5999", 0, asked, 6000.0)] == [0, None]
    assert [each.pool for each in probes.open("app-1", 0, asked, 6000.0)] == [0, 1]
    assert len(probes) <= 4096
