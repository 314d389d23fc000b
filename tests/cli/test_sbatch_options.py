"""`advisor advise` reads a script and options as sbatch does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.cli import sbatch

SCRIPT = """#!/bin/bash
#SBATCH --job-name=train -p v100,p100
#SBATCH --gres=gpu:1 --time=04:00:00   # a comment
#SBATCH -c4
#ADVISOR app: resnet50

srun ./train
#SBATCH --partition=too-late
"""


def ask(script: str = "#!/bin/sh\n", *options: str) -> sbatch.protocol.SubmitRequest:
    return sbatch.request(script, options, {"ADVISOR_APP": "x", "HOME": "/home/alice"}, "alice", 1001, "job.sh")


def test_the_scripts_own_lines_are_read_up_to_the_first_command() -> None:
    request = ask(SCRIPT)
    assert (request.name, request.partition, request.cpus_per_task) == ("train", "v100,p100", 4)
    assert (request.tres_per_node, request.time_limit) == ("gres/gpu:1", 240)
    assert request.script_head is not None and "#ADVISOR app: resnet50" in request.script_head
    assert "srun" not in request.script_head


def test_options_on_the_command_line_win() -> None:
    request = ask(SCRIPT, "-p", "k80", "--time", "30", "--gpus-per-node=a100:2")
    assert (request.partition, request.time_limit, request.tres_per_node) == ("k80", 30, "gres/gpu:a100:2")


def test_only_the_advisors_own_variables_are_sent() -> None:
    assert ask().environment == {"ADVISOR_APP": "x"}


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        (["-G2"], "tres_per_job", "gres/gpu:2"),
        (["--gpus-per-task=1"], "tres_per_task", "gres/gpu:1"),
        (["--gpus-per-socket", "v100:1"], "tres_per_socket", "gres/gpu:v100:1"),
        (["--gres=gpu:1,shard:2"], "tres_per_node", "gres/gpu:1,gres/shard:2"),
        (["--gres=none"], "tres_per_node", None),
        (["--mem=4G"], "min_mem_per_node", 4096),
        (["--mem=1"], "min_mem_per_node", 1),
        (["--mem-per-cpu=1500K"], "min_mem_per_cpu", 2),
        (["-N", "2-4"], "max_nodes", 4),
        (["-N", "2"], "min_nodes", 2),
        (["--exclusive"], "shared", 0),
        (["--exclusive=user"], "shared", 2),
        (["-a", "0-9%2"], "array", "0-9%2"),
        (["--cons", "volta"], "features", "volta"),
        (["--output", "out.txt", "-p", "x"], "partition", "x"),
        (["--hold", "-p", "x"], "partition", "x"),
        (["-t", "1-12:30:00"], "time_limit", 36 * 60 + 30),
        (["-t", "90:30"], "time_limit", 91),
        (["-t", "UNLIMITED"], "time_limit", None),
    ],
)
def test_an_option_becomes_the_field_that_slurm_would_fill(options: list[str], field: str, value: object) -> None:
    assert getattr(ask("#!/bin/sh\n", *options), field) == value


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--partitoin=x"], "unknown sbatch option --partitoin"),
        (["--gpus-per"], "did you mean --gpus-per-node"),
        (["--time=soon"], "is not a time"),
        (["--mem=lots"], "is not a size"),
        (["-c", "many"], "is not a number"),
        (["-p"], "needs a value"),
        (["job.sh"], "is not an sbatch option"),
        (["-Z"], "unknown sbatch option"),
    ],
)
def test_a_wrong_option_is_named(options: list[str], says: str) -> None:
    with pytest.raises(sbatch.OptionError, match=says):
        ask("#!/bin/sh\n", *options)


@given(st.lists(st.text(max_size=20), max_size=6), st.text(max_size=200))
def test_any_words_are_read_or_refused_with_a_sentence(options: list[str], script: str) -> None:
    try:
        ask("#!/bin/sh\n#SBATCH " + script, *options)
    except sbatch.OptionError as error:
        assert str(error)
