"""What apps, sizes and processors tell about each other: what is alike helps, what is not does no harm."""

from __future__ import annotations

import math
import random

import pytest

from advisor.performance.model import files
from advisor.performance.model.model import RunTimeModel
from advisor.performance.model.observations import Observation
from advisor.performance.model.table import entries_of, table
from advisor.performance.runtime import expected
from tests.performance.runs import GPUS, PROCESSORS, SLOWER, fitted

SIZES = (1, 2, 4)
WORSE = 0.7  # what four v100s of `appa` take longer than its other runs promise


def truth(app: str, gpu: str, units: int) -> float:
    level = 7.0 + 0.3 * (ord(app[-1]) - ord("a"))
    return level + SLOWER[gpu] - 0.8 * math.log(units) + (WORSE if (app, gpu, units) == ("appa", "v100", 4) else 0.0)


def sized(seed: int, without: tuple[str, str, int] | None = None, runs: int = 2) -> list[Observation]:
    """Six apps on every GPU type and size, but for one of them; hardly any noise."""
    rng = random.Random(seed)
    return [
        Observation(f"app{letter}", "ann", gpu, units, truth(f"app{letter}", gpu, units) + rng.gauss(0, 0.02))
        for letter in "abcdef"
        for gpu in GPUS
        for units in SIZES
        for _ in range(runs + 2 * (units == 1))
        if (f"app{letter}", gpu, units) != without
    ]


def test_an_app_that_scales_badly_on_one_gpu_type_is_known_there_and_no_worse_elsewhere() -> None:
    model = fitted(sized(1))
    for gpu in GPUS:
        for units in SIZES:
            told = model.predict("appa", "ann", gpu, units)
            assert abs(told.mean_log - truth("appa", gpu, units)) < 0.1
    assert abs(model.predict("appb", "ann", "v100", 4).mean_log - truth("appb", "v100", 4)) < 0.1


def test_a_size_that_an_app_has_never_had_there_is_less_sure() -> None:
    model = fitted(sized(2, without=("appa", "v100", 4)))
    never, had = model.predict("appa", "ann", "v100", 4), model.predict("appa", "ann", "k80", 4)
    nobody = model.predict("appa", "ann", "v100", 16)
    assert never.sd_log > 2 * had.sd_log
    assert nobody.sd_log > never.sd_log


def test_a_run_at_another_size_counts_as_soon_as_it_ends() -> None:
    runs = sized(3, without=("appa", "v100", 4))
    model = fitted(runs)
    for _ in range(2):
        model.update(Observation("appa", "ann", "v100", 4, truth("appa", "v100", 4)))
    assert abs(model.predict("appa", "ann", "v100", 4).mean_log - truth("appa", "v100", 4)) < 0.15
    assert abs(model.predict("appa", "ann", "v100", 1).mean_log - truth("appa", "v100", 1)) < 0.1


def test_a_decision_goes_by_the_size_that_the_job_asks_for() -> None:
    model = fitted(sized(4))
    for found in (table(model), entries_of(model, "appa", GPUS)):
        for gpu in GPUS:
            for units in SIZES:
                told = model.predict("appa", "ann", gpu, units)
                estimate = expected("appa", "ann", gpu, None, None, found, PROCESSORS, gpus=units)
                assert estimate.sd_log == pytest.approx(told.sd_log)
                assert math.log(estimate.seconds) == pytest.approx(told.mean_log + told.sd_log**2 / 2, abs=1e-6)


def test_an_app_that_never_ran_is_known_at_the_sizes_of_its_family() -> None:
    # On a v100, four GPUs of `train_…` are hardly faster than one; on others they are three times as fast.
    def log_s(gpu: str, units: int) -> float:
        return 7.0 + SLOWER[gpu] - (0.1 if gpu == "v100" else 0.8) * math.log(units)

    runs = [
        Observation(f"train_{number}", "ann", gpu, units, log_s(gpu, units) + 0.01 * number)
        for number in range(1, 7)
        for gpu in GPUS
        for units in (1, 1, 4)
    ]
    found = table(fitted(runs))
    for gpu in GPUS:
        for units in (1, 4):
            estimate = expected("train_7", "ann", gpu, None, None, found, PROCESSORS, gpus=units)
            assert estimate.source == "similar jobs"
            assert abs(math.log(estimate.seconds) - estimate.sd_log**2 / 2 - log_s(gpu, units)) < 0.25


def test_a_saved_model_still_knows_the_sizes() -> None:
    model = fitted(sized(5))
    again = files.decode(files.encode(model), PROCESSORS)
    for units in (*SIZES, 8):
        one, other = (m.predict("appa", "ann", "v100", units) for m in (model, again))
        assert one.mean_log == pytest.approx(other.mean_log) and one.sd_log == pytest.approx(other.sd_log)


def test_a_model_saved_before_sizes_were_told_apart_still_serves() -> None:
    import msgspec

    state = msgspec.msgpack.decode(files.encode(fitted([run for run in sized(6) if run.units == 1])))
    state["format"] = 1
    del state["sizes"], state["prior"]["scaling"]
    for level in ("family", "app"):
        state["learned"][level] = state["learned"][level][:-1]
    old = files.decode(msgspec.msgpack.encode(state), PROCESSORS)
    assert abs(old.predict("appb", "ann", "k80").mean_log - truth("appb", "k80", 1)) < 0.1
    old.update(Observation("appb", "ann", "k80", 2, truth("appb", "k80", 2)))


def named(seed: int, names: list[list[str]], apart: float) -> tuple[list[Observation], dict[str, float]]:
    """Families of apps with a k80 / v100 ratio of their own, apps `apart` from it; the last of each never on a k80."""
    rng = random.Random(seed)
    runs: list[Observation] = []
    hidden: dict[str, float] = {}
    for apps in names:
        family = rng.gauss(0.0, 0.5)
        for app in apps:
            level, slower = rng.gauss(7.0, 1.0), SLOWER["k80"] + family + rng.gauss(0.0, apart)
            for gpu, more in (("v100", 0.0), ("k80", slower)):
                if gpu == "k80" and app == apps[-1]:
                    hidden[app] = level + slower
                    continue
                runs += [Observation(app, "ann", gpu, 1, level + more + rng.gauss(0.0, 0.05)) for _ in range(3)]
    return runs, hidden


FAMILIES = [[f"{word}-b{number}" for number in (8, 16, 32, 64, 128)] for word in ("cnn", "lm", "gan", "rnn", "gnn")]
STRANGERS = [[f"{word}{chr(97 + i)}" for i in range(5)] for word in ("cnn", "lm", "gan", "rnn", "gnn")]


def errors(names: list[list[str]], apart: float) -> float:
    """Of the apps that never ran on a k80, there: the mean error of the logarithm."""
    found = []
    for seed in range(8):
        runs, hidden = named(seed, names, apart)
        model = RunTimeModel.fitted(runs, PROCESSORS)
        found += [abs(model.predict(app, "ann", "k80").mean_log - log_s) for app, log_s in hidden.items()]
    return sum(found) / len(found)


def test_names_that_differ_in_a_number_tell_each_other_how_much_slower_a_gpu_is() -> None:
    assert errors(FAMILIES, apart=0.05) < 0.6 * errors(STRANGERS, apart=0.05)


def test_names_that_differ_in_a_number_and_mean_nothing_do_no_harm() -> None:
    """The members of these families are as unlike as any two apps."""
    assert errors(FAMILIES, apart=1.0) < 1.1 * errors(STRANGERS, apart=1.0)
