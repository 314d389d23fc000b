"""The shipped model: small, loadable, and better than the arithmetic where it has never been."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.policy.learned.files import WEIGHTS, read_model
from advisor.policy.learned.shapes import zero_weights
from advisor.resources import folder
from advisor.sim.cluster import from_counts
from advisor.sim.workload import SimJob, Workload
from advisor.training.environment import Environment
from advisor.training.evaluation import figures, run_policy, run_with_rounds
from advisor.training.known_tasks import task_of
from advisor.training.recipe import Recipe, read_recipe
from advisor.training.tasks import Mixture, draw_task

SHIPPED = folder("models") / "default"
UNSEEN = Mixture(held_out=True, jobs=200)


def test_the_shipped_model_is_small_and_says_how_it_was_made():
    _, card = read_model(SHIPPED)
    assert (SHIPPED / WEIGHTS).stat().st_size <= 2_000_000
    assert card.command == "advisor train default"
    recipe = read_recipe(folder("models") / "recipes" / "default.yaml")
    made_with = msgspec.convert(msgspec.to_builtins(read_recipe(SHIPPED / "recipe.yaml")), Recipe)
    assert msgspec.structs.replace(made_with, mixture=recipe.mixture) == recipe
    assert card.seed == recipe.seed and card.objective == recipe.objective


def test_it_beats_the_arithmetic_on_clusters_it_never_saw():
    weights, _ = read_model(SHIPPED)
    gains, tails = [], []
    for seed in range(700, 730):
        env = Environment(draw_task(seed, UNSEEN), weights)
        learned = env.play()
        gains.append(env.arithmetic.avg_jct / learned.avg_jct)
        tails.append(learned.p99 / env.arithmetic.p99)
    assert np.mean(gains) > 1.01
    assert np.mean(tails) < 1.05


def test_in_the_real_simulator_an_untrained_network_places_as_the_arithmetic():
    task = draw_task(3, msgspec.structs.replace(UNSEEN, jobs=60))
    env = Environment(task, zero_weights())
    assert run_policy(env).to_bytes() == run_policy(env, learned=False).to_bytes()


def test_what_training_never_met_is_left_to_the_arithmetic():
    # A hundred jobs at one instant: no workload of training has such a rate.
    jobs = tuple(
        SimJob(id=str(j), submit=0.0, run_time={"v100": 100.0 + j, "k80": 900.0 - j}, app=f"app{j % 3}", gpus=1)
        for j in range(100)
    )
    task = task_of(from_counts({"v100": (4, 1), "k80": (4, 1)}), Workload("burst", jobs))
    weights, _ = read_model(SHIPPED)
    env = Environment(task, weights)
    assert figures(task, run_policy(env)) == figures(task, run_policy(env, learned=False))


def test_a_trace_becomes_a_task_with_its_dependencies():
    jobs = (
        SimJob(id="a", submit=0.0, run_time={"v100": 10.0, "k80": 50.0}, gpus=1),
        SimJob(id="b", submit=1.0, run_time={"v100": 20.0, "k80": 90.0}, gpus=1, depends=("a",)),
        SimJob(id="c", submit=2.0, run_time={"v100": 30.0, "k80": 70.0}, gpus=1, depends=("b",)),
    )
    task = task_of(from_counts({"v100": (1, 1), "k80": (1, 1)}), Workload("chain", jobs))
    assert task.after.tolist() == [50.0, 30.0, 0.0]
    assert task.figures[0, 0] > task.figures[1, 0]


def test_with_rounds_it_places_at_submission_and_what_waits_may_be_moved():
    busy = Mixture(held_out=True, jobs=120, types=(3, 4), nodes=(2, 3), load=(1.0, 1.05), oracle=1.0, contended=0.0)
    task = draw_task(706, msgspec.structs.replace(busy, workflows=0.0))
    env = Environment(task, read_model(SHIPPED)[0])
    once, again = run_policy(env), run_with_rounds(env)
    assert np.isfinite(again.end).all()
    # Nobody waits before the first job that does: up to there nothing differs.
    first = int(np.flatnonzero(once.start > [job.submit + 1.0 for job in task.workload.jobs])[0])
    assert (once.place[:first] == again.place[:first]).all() and (once.place != again.place).any()
