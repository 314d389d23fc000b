"""What an admin sees of the run-time model: sane answers with little data, better ones with more, no poisoning."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.performance.model import files
from advisor.performance.model.model import RunTimeModel
from advisor.performance.model.names import family
from advisor.performance.model.observations import Observation, Refused, Runs, observe
from advisor.performance.model.table import entries_of, table
from tests.performance.runs import GPUS, PROCESSORS, SLOWER, cut_at, fitted, site


def test_an_app_seen_on_one_gpu_is_predicted_on_another() -> None:
    runs = [run for run in site(1) if run.app != "appa" or run.processor == "v100"]
    level = [run.log_s for run in runs if run.app == "appa"]
    expected = sum(level) / len(level) + SLOWER["k80"]

    told = fitted(runs).predict("appa", "user0", "k80")

    assert abs(told.mean_log - expected) < 0.4
    assert told.sd_log < 0.6
    assert told.runs == 0
    assert told.runs_elsewhere == 6


def test_runs_make_the_interval_narrower_down_to_how_much_they_differ() -> None:
    spreads = []
    for count in (0, 1, 30):
        found = []
        for seed in range(5):
            mine = [run for run in site(seed, noise=0.5) if run.app != "appa"]
            mine += site(seed, apps=1, runs=count, noise=0.5)
            found.append(fitted(mine).predict("appa", "user0", "v100").sd_log)
        spreads.append(sum(found))
    assert spreads[0] > 1.5 * spreads[1]
    assert 0.4 < spreads[2] / 5 < 0.65


def test_nothing_seen_at_all_gives_a_wide_answer_around_an_hour() -> None:
    told = fitted([]).predict("anything", "anyone", "v100")
    low, high = told.interval()
    assert low < 600 and high > 6 * 3600
    assert math.isfinite(told.mean_log) and told.runs == told.runs_elsewhere == 0


def test_a_single_run_says_something_but_not_everything() -> None:
    run = Observation("solo", "ann", "v100", 1, math.log(7200))
    told = fitted([run]).predict("solo", "ann", "v100")
    nothing = fitted([]).predict("solo", "ann", "v100")
    assert abs(told.mean_log - run.log_s) < 0.3
    assert 0.2 < told.sd_log < nothing.sd_log


def test_an_unknown_app_is_wider_than_a_known_one_and_an_unknown_processor_wider_than_its_peer() -> None:
    model = fitted(site(3))
    known = model.predict("appa", "user0", "v100")
    assert model.predict("never seen", "user0", "v100").sd_log > 2 * known.sd_log
    assert model.predict("appa", "user0", "tpu9").sd_log > 1.5 * model.predict("appa", "user0", "a100").sd_log


def test_an_app_that_differs_in_the_last_number_only_is_known_by_its_family() -> None:
    rng = random.Random(4)
    family_runs = [
        Observation(f"train_{number:04}", "ann", "v100", 1, 6.0 + rng.gauss(0, 0.1))
        for number in range(1, 30)
        for _ in range(2)
    ]
    model = fitted(site(4) + family_runs)
    alike, other = model.predict("train_0031", "ann", "v100"), model.predict("other", "ann", "v100")
    assert abs(alike.mean_log - 6.0) < 0.3
    assert alike.sd_log < 0.6 * other.sd_log
    assert family("train_0031")[0] == family("train_0001")[0] == "train_#"


def test_batch_sizes_in_names_are_extrapolated() -> None:
    runs = [
        Observation(f"{name} (batch size {size})", "", gpu, 1, level + 0.8 * math.log(size) + SLOWER[gpu])
        for name, level in (("lm", 4.0), ("cnn", 5.0), ("rnn", 3.0), ("gan", 6.0))
        for size in (8, 16, 32, 64)
        for gpu in GPUS
        if (name, size) != ("lm", 64)
    ]
    told = fitted(runs).predict("lm (batch size 64)", "", "v100")
    assert abs(told.mean_log - (4.0 + 0.8 * math.log(64))) < 0.5


def test_one_users_runs_of_an_app_are_told_apart() -> None:
    model = fitted(site(5, runs=10))
    mine, yours = model.predict("appb", "user0", "v100"), model.predict("appb", "user1", "v100")
    assert 0.15 < yours.mean_log - mine.mean_log < 0.45
    assert mine.mean_log < model.predict("appb", "a third", "v100").mean_log < yours.mean_log


def test_more_gpus_of_an_app_that_scales_are_faster() -> None:
    rng = random.Random(6)
    runs = [
        Observation(f"app{app}", "ann", "v100", units, 9.0 - 0.9 * math.log(units) + rng.gauss(0, 0.1))
        for app in "abcdef"
        for units in (1, 2, 4)
        for _ in range(3)
    ]
    told = fitted(runs).predict("appa", "ann", "v100", 8)
    assert abs(told.mean_log - (9.0 - 0.9 * math.log(8))) < 0.3


def test_time_outs_count_for_what_they_say() -> None:
    """Half of one app's runs hit the limit: neither dropping them nor taking them at face value finds the truth."""
    errors: dict[str, list[float]] = {"ours": [], "dropped": [], "face value": []}
    for seed in range(6):
        rng = random.Random(seed)
        truth = 8.0
        whole = [Observation("cut", "ann", "v100", 1, truth + rng.gauss(0, 0.6)) for _ in range(40)]
        seen = [cut_at(run, truth) for run in whole]
        others = site(seed, noise=0.6)
        kept = [run for run in seen if not run.cut_off]
        exact = [Observation(r.app, r.user, r.processor, r.units, r.log_s) for r in seen]
        for name, runs in (("ours", seen), ("dropped", kept), ("face value", exact)):
            errors[name].append(abs(fitted(others + runs).predict("cut", "ann", "v100").mean_log - truth))
    mean = {name: sum(values) / len(values) for name, values in errors.items()}
    assert mean["ours"] < 0.5 * mean["dropped"]
    assert mean["ours"] < 0.6 * mean["face value"]


def test_an_app_that_always_hits_its_limit_is_expected_beyond_it() -> None:
    stuck = [Observation("stuck", "ann", "v100", 1, math.log(3600), True) for _ in range(10)]
    told = fitted(site(7) + stuck).predict("stuck", "ann", "v100")
    assert math.log(3600) < told.mean_log < math.log(40 * 3600)


def test_jobs_cancelled_early_hardly_count() -> None:
    others = site(8)
    early = [Observation("appa", "user0", "v100", 1, math.log(2), True) for _ in range(50)]
    before = fitted(others).predict("appa", "user0", "v100")
    after = fitted(others + early).predict("appa", "user0", "v100")
    assert abs(after.mean_log - before.mean_log) < 0.05


@pytest.mark.parametrize("state", ["FAILED", "OUT_OF_MEMORY", "REQUEUED", "BOOT_FAIL", "REVOKED", "RESIZING", ""])
def test_failed_and_requeued_records_are_left_out(state: str) -> None:
    with pytest.raises(Refused, match="state"):
        observe(app="a", user="u", processor="v100", state=state, elapsed_s=3)


def test_a_failure_after_seconds_does_not_make_an_app_look_fast() -> None:
    log = Runs(site(9))
    before = RunTimeModel.fitted(log, PROCESSORS).predict("appa", "user0", "v100")
    for state in ("FAILED", "REQUEUED", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"):
        for _ in range(20):
            log.add_record(app="appa", user="user0", processor="v100", state=state, elapsed_s=2.0, gpus=1)
    after = RunTimeModel.fitted(log, PROCESSORS).predict("appa", "user0", "v100")
    assert abs(after.mean_log - before.mean_log) < 0.1
    assert log.refused["state FAILED"] == 20


def test_a_job_that_went_on_from_a_checkpoint_is_no_short_run() -> None:
    run = observe(app="a", user="u", processor="v100", state="COMPLETED", elapsed_s=60, restarted=True)
    assert run.cut_off


def test_one_wild_run_does_not_move_an_app() -> None:
    runs = site(10)
    before = fitted(runs).predict("appa", "user0", "v100").mean_log
    wild = Observation("appa", "user0", "v100", 1, 17.0)
    assert abs(fitted([*runs, wild]).predict("appa", "user0", "v100").mean_log - before) < 0.15


def test_an_app_that_has_changed_is_followed_after_a_few_runs() -> None:
    model = fitted(site(18, runs=12))
    before = model.predict("appa", "user0", "v100").mean_log
    for _ in range(6):
        model.update(Observation("appa", "user0", "v100", 1, before + 1.5))
    assert model.predict("appa", "user0", "v100").mean_log > before + 1.0
    assert (
        abs(
            model.predict("appb", "user0", "v100").mean_log
            - fitted(site(18, runs=12)).predict("appb", "user0", "v100").mean_log
        )
        < 0.1
    )


@pytest.mark.parametrize("elapsed", [-1.0, math.nan, math.inf, 1e12])
def test_run_times_that_cannot_be_are_refused_with_a_reason(elapsed: float) -> None:
    with pytest.raises(Refused, match="run time"):
        observe(app="a", user="u", processor="cpu", state="COMPLETED", elapsed_s=elapsed)


def test_less_than_a_second_counts_as_one() -> None:
    assert observe(app="a", user="u", processor="cpu", state="COMPLETED", elapsed_s=0).log_s == 0.0


records = st.fixed_dictionaries(
    {
        "app": st.one_of(st.none(), st.text(max_size=300)),
        "user": st.one_of(st.none(), st.text(max_size=20)),
        "processor": st.one_of(st.none(), st.sampled_from(["", "cpu", "v100", "k80+p100", "what ever"])),
        "state": st.sampled_from(["COMPLETED", "TIMEOUT", "CANCELLED", "FAILED", "RUNNING", "nonsense"]),
        "elapsed_s": st.floats(),
        "gpus": st.one_of(st.none(), st.integers(-5, 10**9)),
        "cpus": st.one_of(st.none(), st.integers(-5, 10**9)),
        "limit_s": st.one_of(st.none(), st.floats()),
    }
)


@given(st.lists(records, max_size=12))
@settings(max_examples=60, deadline=None)
def test_whatever_accounting_says_the_answer_is_a_number(found: list[dict[str, object]]) -> None:
    log = Runs()
    for record in found:
        log.add_record(**record)
    assert len(log) + sum(log.refused.values()) == len(found)
    model = RunTimeModel.fitted(log, PROCESSORS)
    for record in found:
        told = model.predict(str(record["app"]), "u", str(record["processor"] or "cpu"), 3)
        assert math.isfinite(told.mean_log) and 0 < told.sd_log < 100


def test_a_run_taken_in_later_counts_as_if_it_had_been_there() -> None:
    runs = site(11)
    random.Random(0).shuffle(runs)
    first, later = runs[:-40], runs[-40:]
    begun = fitted(first)
    # The spreads are learned anew at a refit only.
    whole = RunTimeModel.fitted(runs, PROCESSORS, learned=begun.learned)
    for run in later:
        begun.update(run)
    for app in ("appa", "appf"):
        for gpu in GPUS:
            one, other = begun.predict(app, "user1", gpu), whole.predict(app, "user1", gpu)
            assert abs(one.mean_log - other.mean_log) < 0.05
            assert abs(one.sd_log / other.sd_log - 1) < 0.1
            assert one.runs == other.runs


def test_updates_alone_teach_an_app_family_and_site_that_were_never_fitted() -> None:
    model = fitted([])
    for run in site(12):
        model.update(run)
    told = model.predict("appa", "user0", "v100")
    direct = [run.log_s for run in site(12) if (run.app, run.user, run.processor) == ("appa", "user0", "v100")]
    assert abs(told.mean_log - sum(direct) / len(direct)) < 0.2
    assert told.sd_log < 0.7


def test_the_order_of_the_log_does_not_matter() -> None:
    runs = [*site(13), Observation("appa", "user0", "v100", 1, 6.0, True)]
    shuffled = list(runs)
    random.Random(1).shuffle(shuffled)
    assert files.encode(fitted(runs)) == files.encode(fitted(shuffled))


def test_a_saved_model_answers_the_same_and_saves_to_the_same_bytes(tmp_path: Path) -> None:
    model = fitted(site(14))
    model.update(Observation("brand_new_7", "zoe", "v100", 2, 6.5, False, 9.0))
    digest = files.save(model, tmp_path)
    again = files.load(tmp_path, PROCESSORS)
    assert files.encode(again) == files.encode(model)
    assert files.save(again, tmp_path / "copy") == digest
    for app, user, gpu in (("appa", "user0", "k80"), ("brand_new_7", "zoe", "v100"), ("brand_new_9", "x", "a100")):
        one, other = model.predict(app, user, gpu), again.predict(app, user, gpu)
        assert one.mean_log == pytest.approx(other.mean_log, abs=1e-6)
        assert one.sd_log == pytest.approx(other.sd_log, abs=1e-6)


def test_a_damaged_model_is_refused_with_a_reason(tmp_path: Path) -> None:
    files.save(fitted(site(15)), tmp_path)
    content = (tmp_path / files.MODEL_FILE).read_bytes()
    (tmp_path / files.MODEL_FILE).write_bytes(content[:-3])
    with pytest.raises(files.ModelError, match="damaged"):
        files.load(tmp_path, PROCESSORS)
    with pytest.raises(files.ModelError, match="damaged"):
        files.decode(content[:-3], PROCESSORS)
    with pytest.raises(files.ModelError, match="refit"):
        files.load(tmp_path / "nowhere", PROCESSORS)


def test_a_model_of_another_version_is_refused() -> None:
    import msgspec

    foreign = msgspec.msgpack.encode({"format": 99})
    with pytest.raises(files.ModelError, match="format 99"):
        files.decode(foreign, PROCESSORS)


def test_the_intervals_hold_what_they_promise() -> None:
    inside = total = 0
    for seed in range(4):
        runs = site(100 + seed, apps=20, noise=0.4)
        model = fitted(runs)
        rng = random.Random(seed)
        for run in rng.sample(runs, 200):
            mean = [r.log_s for r in runs if (r.app, r.user, r.processor) == (run.app, run.user, run.processor)]
            told = model.predict(run.app, run.user, run.processor)
            # A fresh run of the same app, user and processor, around what is (nearly) the truth.
            fresh = sum(mean) / len(mean) + rng.gauss(0, 0.4)
            inside += abs(fresh - told.mean_log) <= 1.645 * told.sd_log
            total += 1
    assert 0.85 <= inside / total <= 0.97


def test_the_table_for_the_hot_path_says_what_the_model_says() -> None:
    model = fitted(site(16))
    found = table(model, ["a100", "cpu"])
    for name, user in (("appa", ""), ("appa@user1", "user1")):
        for gpu in (*GPUS, "a100"):
            told, entry = model.predict("appa", user, gpu), found[name][gpu]
            assert entry.mean_log == pytest.approx(told.mean_log, abs=1e-6)
            assert entry.sd_log == pytest.approx(told.sd_log, rel=0.05)
            assert entry.count == told.runs
            assert entry.modelled
    assert "cpu" not in found["appa"]  # it has never run without GPUs
    assert entries_of(model, "appa", [*GPUS, "a100"])["appa"]["a100"].mean_log == pytest.approx(
        found["appa"]["a100"].mean_log, abs=1e-6
    )


def test_the_table_has_families_for_apps_that_have_never_run() -> None:
    runs = [Observation(f"train_{i}", "ann", "v100", 1, 6.0) for i in range(1, 9)]
    found = table(fitted(site(17) + runs))
    assert abs(found["train_#"]["v100"].mean_log - 6.0) < 0.3
    assert found["train_#"]["v100"].count == 0
    assert table(fitted([])) == {}


def by_steps(seed: int, apps: int = 4, runs: int = 6) -> list[Observation]:
    """Runs whose length is their number of steps over the app's speed there; steps differ by a factor of twenty."""
    rng = random.Random(seed)
    found = []
    for number in range(apps):
        level = rng.gauss(-2.0, 1.0)
        for gpu in GPUS:
            for _ in range(runs):
                log_steps = rng.uniform(8.0, 11.0)
                log_s = log_steps + level + SLOWER[gpu] + rng.gauss(0, 0.02)
                found.append(Observation(f"app{chr(97 + number)}", "ann", gpu, 1, log_s, log_work=log_steps))
    return found


def test_a_job_that_tells_its_steps_is_predicted_by_them() -> None:
    runs = by_steps(21)
    model = fitted(runs)
    one = next(run for run in runs if run.processor == "k80")
    for steps in (3e3, 6e4):
        told = model.predict(one.app, "ann", "k80", work=steps)
        truth = one.log_s - (one.log_work or 0.0) + math.log(steps)
        assert abs(told.mean_log - truth) < 0.1
    untold = model.predict(one.app, "ann", "k80")
    assert untold.sd_log > told.sd_log + 0.4  # it may be short or long


def test_steps_count_the_same_in_updates_saved_models_and_the_table() -> None:
    runs = by_steps(22)
    random.Random(0).shuffle(runs)
    model = RunTimeModel.fitted(runs[:-8], PROCESSORS)
    for run in runs[-8:]:
        model.update(run)
    again = files.decode(files.encode(model), PROCESSORS)
    entry = table(again)["appa"]["v100"]
    assert entry.log_work is not None and entry.work_sd > 0.5
    for steps in (1e3, 1e5):
        told = model.predict("appa", "ann", "v100", work=steps)
        assert again.predict("appa", "ann", "v100", work=steps).mean_log == pytest.approx(told.mean_log)
        assert entry.mean_log + math.log(steps) - entry.log_work == pytest.approx(told.mean_log, abs=1e-6)


def test_runs_that_told_no_steps_still_count() -> None:
    told = by_steps(23, apps=1)
    plain = [Observation("plain", "ann", "v100", 1, 7.0 + 0.1 * i) for i in range(6)]
    model = fitted([*told, *plain])
    assert abs(model.predict("plain", "ann", "v100").mean_log - 7.25) < 0.2
    # Nobody knows what a thousand of its steps are.
    assert model.predict("plain", "ann", "v100", work=1e3).mean_log == model.predict("plain", "ann", "v100").mean_log
