"""Where settings come from, and what is said when one is wrong."""

from pathlib import Path

import pytest
import yaml

from advisor import config
from advisor.settings import Settings


def test_without_a_file_every_setting_has_its_default(tmp_path: Path) -> None:
    empty = tmp_path / "advisor.yaml"
    empty.write_text("")
    loaded = config.load(empty, environ={})
    assert loaded.settings == Settings()
    assert {o.origin for o in loaded.origins} == {"default"}


def test_each_value_knows_where_it_came_from(tmp_path: Path) -> None:
    file = tmp_path / "advisor.yaml"
    file.write_text("modes: {default: enforce, users: {alice: shadow}}\nslurm: {poll_s: 30}\n")
    loaded = config.load(file, environ={"ADVISOR_SLURM__POLL_S": "5", "ADVISOR_SLURM__COMMAND": "[docker, exec, ctl]"})
    origin = {o.key: o for o in loaded.origins}
    assert loaded.settings.modes.default == "enforce"
    assert loaded.settings.slurm.poll_s == 5
    assert loaded.settings.slurm.command == ("docker", "exec", "ctl")
    assert origin["modes.default"].origin == str(file)
    assert origin["modes.users"].origin == str(file)
    assert origin["slurm.poll_s"].origin == "$ADVISOR_SLURM__POLL_S"
    assert origin["paths.socket"].origin == "default"


def test_adding_a_processor_type_keeps_its_numbers(tmp_path: Path) -> None:
    file = tmp_path / "advisor.yaml"
    file.write_text("processors: {gh200: {tflops: 67, memory_gbs: 4000}}\n")
    assert config.load(file, environ={}).settings.processors["gh200"].tflops == 67


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("modes: {default: enforced}", "modes.default"),
        ("experiment: {holdout: 1.5}", "experiment.holdout"),
        ("slurm: {poll: 3}", "unknown field `poll`"),
        ("slurm: [1, 2]", "slurm"),
        ("- a\n- b", "must be a map"),
        ("modes: {default: [", "not valid YAML"),
        ("policy: {min_gain_s: soon}", "policy.min_gain_s"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "advisor.yaml"
    file.write_text(text)
    with pytest.raises(config.ConfigError) as error:
        config.load(file, environ={})
    assert says in str(error.value)
    assert str(file) in str(error.value)


def test_a_named_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match="cannot be read"):
        config.load(tmp_path / "nothing.yaml", environ={})


def test_the_example_file_has_every_key_and_is_valid_once_uncommented(tmp_path: Path) -> None:
    text = config.example()
    file = tmp_path / "advisor.yaml"
    file.write_text(text)
    assert config.load(file, environ={}).settings == Settings()
    uncommented = "\n".join(line.removeprefix("#") for line in text.splitlines()[1:])
    tree = yaml.safe_load(uncommented)
    file.write_text(uncommented)
    assert config.load(file, environ={}).settings == Settings()
    for origin in config.load(file, environ={}).origins:
        node = tree
        for part in origin.key.split("."):
            assert part in node, f"{origin.key} is missing in the example"
            node = node[part]


def test_every_setting_has_a_sentence() -> None:
    for origin in config.load(Path("/dev/null"), environ={}).origins:
        assert origin.sentence.endswith("."), origin.key
