"""Training in the simulator: what a user of `advisor train` sees, and what the forks and tasks promise."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from advisor.cli import cli
from advisor.policy.learned.files import read_model
from advisor.policy.learned.network import PlacementNetwork, Without
from advisor.policy.learned.shapes import LEVELS, zero_weights
from advisor.training import checkpoint
from advisor.training.ablation_study import LOOK, Curve, episodes_ratio, study
from advisor.training.actor_critic import Trainer
from advisor.training.checkpoint import train_into
from advisor.training.environment import Environment
from advisor.training.fine_tuning import Budget, fine_tune
from advisor.training.posterior import RunTimes
from advisor.training.prior import learned_prior, plain_prior
from advisor.training.recipe import Recipe, RecipeError, read_recipe
from advisor.training.tasks import HELD_OUT, Mixture, draw_task

SMALL = Mixture(jobs=80, types=(2, 3), apps=(3, 4))
RECIPE = Recipe(
    name="small", iterations=4, meta_iterations=1, tasks=4, tasks_each=2, forks=4, horizon=10, steps=2, replay=3,
    validation=2, every=2, mixture=SMALL, samples=8,
)  # fmt: skip


def quiet(*_):
    pass


def test_the_same_seed_draws_the_same_task_and_another_episode_the_same_site():
    first, again, other = draw_task(3, SMALL), draw_task(3, SMALL), draw_task(3, SMALL, episode=1)
    assert first.workload == again.workload and first.cluster == again.cluster
    np.testing.assert_array_equal(first.counters, again.counters)
    assert other.cluster == first.cluster and other.workload != first.workload
    assert draw_task(4, SMALL).cluster != first.cluster


def test_held_out_tasks_have_processors_that_training_never_meets():
    # Figures carry a jitter of 10 %; the p40's 11.8 TFLOP/s with 346 GB/s is far from every processor of training.
    trained = np.concatenate([draw_task(seed, SMALL).figures for seed in range(30)])
    unseen = np.concatenate(
        [draw_task(seed, msgspec.structs.replace(SMALL, held_out=True)).figures for seed in range(30)]
    )
    distance = np.abs(unseen[:, None, :2] - trained[None, :, :2]).max(axis=2).min(axis=1)
    assert len(HELD_OUT) > 5 and (distance > 0.1).any()


def test_an_untrained_network_plays_exactly_as_the_arithmetic():
    for seed in range(4):
        env = Environment(draw_task(seed, SMALL), PlacementNetwork(seed).export())
        assert env.play(learned=True) == env.play(learned=False)


def test_a_fork_costs_what_the_whole_run_costs_when_that_place_is_taken():
    env = Environment(draw_task(5, SMALL), zero_weights())
    last = len(env.world.job) - 1
    forks = env.fork(np.array([10, 30]), horizon=last)
    chosen = (forks.table[:, :, 0] + forks.table[:, :, 1]).argmin(axis=1)
    submitted = env.play(learned=False).avg_jct * len(env.world.job) / env.world.scale
    # Jobs before the fork cost the same in every branch; the branch of the policy's own choice is the run itself.
    for row, job in enumerate((10, 30)):
        before = submitted - forks.cost[row, chosen[row]]
        assert 0 < before < submitted
        again = env.fork(np.array([job]), horizon=last)
        np.testing.assert_array_equal(again.cost[0], forks.cost[row])


@pytest.mark.parametrize("objective", ["avg_jct", "p99", "makespan", "fairness"])
def test_every_objective_gives_each_place_a_cost(objective):
    env = Environment(draw_task(6, SMALL), zero_weights())
    cost = env.fork(np.array([5, 20, 40]), 20, objective).cost
    able = np.isfinite(env.world.pair[[5, 20, 40], :, 0])
    assert (np.isfinite(cost) == able).all() and (cost[able] > 0).all()


def test_the_same_seed_gives_the_same_bytes_also_when_killed_and_resumed(tmp_path, monkeypatch):
    train_into(tmp_path / "whole", RECIPE, None, False, "x", quiet)
    train_into(tmp_path / "stopped", RECIPE, None, False, "x", quiet, stop=2)
    assert (tmp_path / "stopped" / "weights.safetensors").exists()
    train_into(tmp_path / "stopped", RECIPE, None, True, "x", quiet)
    written = checkpoint._write

    def killed(path, trainer, recipe):
        written(path, trainer, recipe)
        if trainer.iteration == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        train_into(tmp_path / "parts", RECIPE, None, False, "x", quiet)
    monkeypatch.undo()
    assert (tmp_path / "parts" / "checkpoint.pt").exists()
    done = []
    train_into(tmp_path / "parts", RECIPE, None, True, "x", lambda now, *_: done.append(now))
    assert done[0] == 3  # it went on, it did not begin again
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("whole", "parts", "stopped")]
    assert weights[0] == weights[1] == weights[2]
    train_into(tmp_path / "other", RECIPE, 7, False, "x", quiet)
    assert (tmp_path / "other" / "weights.safetensors").read_bytes() != weights[0]


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    trainer = Trainer(RECIPE)
    checkpoint._write(tmp_path / "checkpoint.pt", trainer, RECIPE)
    with pytest.raises(checkpoint.ResumeError, match="another recipe or seed"):
        train_into(tmp_path, msgspec.structs.replace(RECIPE, horizon=11), None, True, "x", quiet)
    (tmp_path / "checkpoint.pt").write_bytes(b"cut off")
    with pytest.raises(checkpoint.ResumeError, match="cannot be read"):
        train_into(tmp_path, RECIPE, None, True, "x", quiet)


def test_advisor_train_leaves_a_model_that_can_be_loaded(tmp_path):
    recipe = tmp_path / "small.yaml"
    recipe.write_text(yaml.safe_dump(msgspec.to_builtins(msgspec.structs.replace(RECIPE, iterations=2))))
    out = tmp_path / "model"
    result = CliRunner().invoke(cli, ["train", str(recipe), "--out", str(out), "--seed", "3", "--json"])
    assert result.exit_code == 0, result.output
    assert msgspec.json.decode(result.stdout)["iterations"] == 3
    weights, card = read_model(out)
    assert card.seed == 3 and "advisor train" in card.command
    assert (weights.range_low < weights.range_high).all()
    assert (out / "curve.svg").read_text().startswith("<svg") and (out / "recipe.yaml").exists()
    assert not (out / "checkpoint.pt").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("iterations: 0", "iterations"),
        ("objektive: p99", "objektive"),
        ("a: [", "expected"),
        ("tasks: 2", "tasks_each"),
    ],
)
def test_a_wrong_recipe_is_refused_with_the_field(tmp_path, text, told):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=told):
        read_recipe(path)
    result = CliRunner().invoke(cli, ["train", str(path)])
    assert result.exit_code == 1 and told in result.output


def test_fine_tuning_moves_only_the_last_layers_and_repeats_itself():
    weights = PlacementNetwork(2).export()
    tasks = [draw_task(8, SMALL)]
    budget = Budget(rounds=1, steps=2, forks=8)
    tuned = fine_tune(weights, tasks, seed=1, budget=budget)
    again = fine_tune(weights, tasks, seed=1, budget=budget)
    for name in weights._fields:
        np.testing.assert_array_equal(getattr(tuned, name), getattr(again, name))
    np.testing.assert_array_equal(tuned.edge_w1, weights.edge_w1)
    np.testing.assert_array_equal(tuned.belief, weights.belief)
    assert (tuned.head_w3 != weights.head_w3).any()


def test_runs_that_have_ended_teach_what_apps_take():
    task = draw_task(11, msgspec.structs.replace(SMALL, oracle=0.0, new_apps=1.0, contended=0.0, annotated=1.0))
    runs = RunTimes(task, plain_prior())

    def error():
        seconds, _ = runs.expected()
        able = np.isfinite(seconds)
        return float(np.abs(np.log(seconds[able] / task.mean[able])).mean())

    first = error()
    jobs = np.arange(40)
    places = np.argmin(task.expected[jobs], axis=1)
    runs.observe(jobs, places, task.mean[jobs, places])
    assert error() < 0.6 * first


def test_what_many_sites_taught_tells_run_times_on_processors_that_none_of_them_had():
    mixture = msgspec.structs.replace(SMALL, held_out=True, oracle=0.0, new_apps=1.0, contended=0.0)
    errors = []
    for prior in (learned_prior(), plain_prior()):
        off = []
        for seed in range(70, 82):
            task = draw_task(seed, mixture)
            seconds, _ = RunTimes(task, prior).expected()
            able = np.isfinite(seconds)
            off.append(np.abs(np.log(seconds[able] / task.mean[able])).mean())
        errors.append(np.mean(off))
    assert errors[0] < 0.5 * errors[1]


def test_a_black_box_is_shown_what_is_observed_and_starts_from_nothing():
    parts = ("beliefs", "graph", "topology", "residual", "features")
    weights = PlacementNetwork(3, Without(**dict.fromkeys(parts, True))).export()
    env = Environment(draw_task(5, msgspec.structs.replace(SMALL, contended=1.0)), weights, believing=False)
    forks = env.fork(np.arange(40, 48), 5)
    able = np.isfinite(forks.cost)
    shown = forks.table[:, :, 2:]
    counters = env.task.counters[forks.job] / (LEVELS - 1)
    np.testing.assert_array_equal(shown[:, :, 7:10][able], counters[able])
    run = np.log(env.task.expected[forks.job] / env.task.slow[forks.job] / 1800.0)
    np.testing.assert_allclose(shown[:, :, 10][able], run[able])
    # Offered load, waits, trend and spread of sizes are worked out, not observed.
    assert not forks.moments[:, :, [0, 2, 4, 6]].any() and forks.moments[:, -1, 1].any()
    # Untrained it knows no place from another, and takes the first that can run the job.
    assert env.play().avg_jct > env.play(learned=False).avg_jct


def test_episodes_are_counted_to_the_same_score():
    def curve(*gains):
        return Curve([LOOK * i for i in range(len(gains))], list(gains), [1.0] * len(gains))

    slow = curve(0.2, 0.7, 0.9, 0.95, 1.01)
    assert episodes_ratio(curve(1.0, 1.0, 1.02, 1.0, 1.0), slow) == 2.0
    # There from the start: one look's worth of episodes is the least that is counted.
    assert episodes_ratio(curve(1.02, 1.0, 1.0, 1.0, 1.0), slow) == 4.0
    # Never there: as if it took twice all there were.
    assert episodes_ratio(curve(0.9, 0.9, 0.9, 0.9, 0.9), slow) == 0.5


def test_an_ended_study_goes_on_with_what_it_has_already_trained(tmp_path):
    kept, said = tmp_path / "curves.json", []

    def run(names):
        return study(RECIPE, names, [1], LOOK, 700, SMALL, said.append, kept)

    first = run(["whole"])
    assert len(said) == 1
    both = run(["whole", "without LSTM"])
    assert len(said) == 2 and said[1].startswith("without LSTM")
    assert both["whole"] == first["whole"]
