"""Reading workloads: each format as a site would hand it over, and each way in which it can be wrong."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.sim.cluster import ClusterError, from_state, parse_cluster, read_cluster
from advisor.sim.traces import gavel, jsonl, read_workload, sacct, swf, synthetic
from advisor.sim.workload import SimJob, TraceError, checked

SWF_HEAD = "; Version: 2.2\n; MaxProcs: 64\n"
SWF_JOB = "1 0 -1 100 4 -1 -1 4 600 -1 1 3 2 7 0 -1 -1 -1\n"

TABLE = {
    "v100": {"('resnet', 1)": {"null": 10.0, "('resnet', 1)": [6.0, 6.0]}, "('resnet', 2)": {"null": 18.0}},
    "k80": {"('resnet', 1)": {"null": 2.0, "('resnet', 1)": [1.0, 1.0]}, "('resnet', 2)": {"null": 0.0}},
    "v100_unconsolidated": {},
}
TRACE_LINE = "resnet\tpython3 x.py\tdir\t-n\t1\t1000\t1\t1\t-1.0\t51\n"

SACCT = """\
JobID|JobName|User|Account|Partition|Submit|Start|ElapsedRaw|TimelimitRaw|NNodes|NCPUS|ReqMem|AllocTRES|State
10|train|ann|vision|gpu|2024-01-01T00:00:00|2024-01-01T00:05:00|3600|120|1|4|16G|cpu=4,gres/gpu:v100=2|COMPLETED
10.batch|batch||||2024-01-01T00:05:00|2024-01-01T00:05:00|3600||1|4|||COMPLETED
11_3|prep|bob|bio|cpu|2024-01-01T00:01:00|2024-01-01T00:01:00|60|UNLIMITED|2|8|2Gn|cpu=8|TIMEOUT
12|never|bob|bio|cpu|2024-01-01T00:02:00|Unknown|0|10|1|1|1G||CANCELLED by 0
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "throughputs.json"
    path.write_text(json.dumps(TABLE))
    return path


def test_an_swf_log_gives_its_jobs_and_its_machine():
    workload = swf.parse(SWF_HEAD + SWF_JOB + "2 10 -1 -1 4 -1 -1 4 600 -1 5 3 2 7 0 -1 -1 -1\n", "x.swf")
    (job,) = workload.jobs  # the second never ran
    assert (job.id, job.submit, job.nodes, job.cpus, job.time_limit) == ("1", 0.0, 4, 4, 600.0)
    assert (job.user, job.account, job.app) == ("user3", "group2", "app7")
    assert len(swf.cluster_of(workload).nodes) == 64


@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        ("1 0 -1 100", "processors", "is missing: 4 of 18 columns"),
        (SWF_JOB.replace("100", "long"), "run time", "'long' is not a number"),
        (SWF_JOB.replace("1 0 -1 100 4", "1 0 -1 100 nan"), "processors", "'nan' is not a number"),
        (SWF_JOB.replace("1 0 -1 100", "1 -5 -1 100"), "submit", "-5 is not a time"),
        (SWF_JOB.replace("1 0 -1 100", "1 0 -1 -7"), "run time", "-7 is neither"),
        (SWF_JOB + SWF_JOB, "id", "'1' is already the id of the job on line 3"),
    ],
)
def test_a_bad_swf_line_is_named_with_its_field(row, field, words):
    with pytest.raises(TraceError) as caught:
        swf.parse(SWF_HEAD + row, "log.swf")
    assert caught.value.field == field
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"log.swf:{caught.value.line}: {field}: ")


def test_a_gavel_trace_gets_its_run_times_from_the_table(table, tmp_path):
    path = tmp_path / "a.trace"
    path.write_text(TRACE_LINE + TRACE_LINE.replace("\t1\t1\t-1.0", "\t2\t1\t-1.0"))
    first, second = read_workload(str(path), table).jobs
    assert first.run_time == {"v100": 100.0, "k80": 500.0}
    assert second.run_time == {"v100": 1000 / 18}  # two GPUs do not run on a k80
    assert (second.gpus, second.nodes, second.submit) == (2, 2, 51.0)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("resnet\tx\t1\n", "steps argument"),
        (TRACE_LINE.replace("\t1000\t", "\tmany\t"), "total steps"),
        (TRACE_LINE.replace("\t51", "\t-51"), "arrival"),
        (TRACE_LINE.replace("resnet", "unheard-of"), "job type"),
    ],
)
def test_a_bad_gavel_line_is_named_with_its_column(line, field, table):
    with pytest.raises(TraceError) as caught:
        gavel.parse(TRACE_LINE + line, gavel.read_throughputs(table), "b.trace")
    assert (caught.value.line, caught.value.field) == (2, field)


def test_a_gavel_trace_without_its_table_says_which_option_is_missing(tmp_path):
    path = tmp_path / "a.trace"
    path.write_text(TRACE_LINE)
    with pytest.raises(TraceError, match="--throughputs FILE"):
        read_workload(str(path))


@pytest.mark.parametrize("text", ["[]", '{"v100": {"resnet": {"null": 1}}}', '{"v100": {"(\'a\', 1)": {}}}', "{"])
def test_a_bad_throughput_table_is_an_error_with_the_file(text, tmp_path):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"t\.json"):
        gavel.read_throughputs(path)


def test_json_lines_read_back_what_was_written():
    workload = synthetic.make(synthetic.Recipe(jobs=30, types={"v100": 4, "k80": 4}, dependent=0.3))
    again = jsonl.parse(jsonl.write(workload), "w.jsonl")
    assert again.jobs == workload.jobs


GOOD = '{"id": 1, "submit": 0, "run_time": {"v100": 5}}'


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('{"id": 2, "run_time": {"v100": 5}}', "submit"),
        ('{"id": 2, "submit": 0}', "run_time"),
        ('{"id": 2, "submit": -1, "run_time": {"v100": 5}}', "submit"),
        ('{"id": 2, "submit": 0, "run_time": {"v100": -5}}', "run_time.v100"),
        ('{"id": 2, "submit": 0, "run_time": {"v100": "long"}}', "run_time[...]"),
        ('{"id": 2, "submit": 0, "run_time": {}}', "run_time"),
        ('{"id": 2, "submit": 0, "run_time": {"v100": 5}, "gpus": -1}', "gpus"),
        ('{"id": 2, "submit": 0, "run_time": {"v100": 5}, "nodes": 0}', "nodes"),
        ('{"id": 2, "submit": 0, "run_time": {"v100": 5}, "time_limit": 0}', "time_limit"),
        ('{"id": 2, "submit": 0, "run_time": {"v100": 5}, "depends": ["x"]}', "depends"),
        ('{"id": 2, "submit": 0, "run_time": {"v100": 5}, "colour": "red"}', "colour"),
        ('{"id": 1, "submit": 0, "run_time": {"v100": 5}}', "id"),
        ('{"id": 2, "submit": 0,', "JSON"),
        ('{"id": 2, "submit": 0, "run_time": {"v100": 5}, "depends": [2]}', "depends"),
    ],
)
def test_a_bad_json_line_is_named_with_its_field(line, field):
    with pytest.raises(TraceError) as caught:
        jsonl.parse(GOOD + "\n\n" + line, "w.jsonl")
    assert (caught.value.line, caught.value.field) == (3, field)


def test_jobs_that_wait_for_each_other_are_refused():
    ring = [(i + 1, SimJob(id=str(i), submit=0, run_time={"any": 1}, depends=(str((i + 1) % 3),))) for i in range(3)]
    behind = (4, SimJob(id="9", submit=0, run_time={"any": 1}, depends=("0",)))
    with pytest.raises(TraceError, match="waits, through others, for itself"):
        checked("w", [*ring, behind], "w")


def test_sacct_text_gives_what_ran():
    first, second = sacct.parse(SACCT, "jan.sacct").jobs
    assert (first.id, first.gpus, first.run_time, first.memory_mb) == ("10", 2, {"v100": 3600.0}, 16384)
    assert (first.time_limit, first.partitions, first.user) == (7200.0, ("gpu",), "ann")
    assert (second.array, second.run_time, second.nodes, second.memory_mb) == ("11", {"cpu": 60.0}, 2, 4096)
    assert (second.submit, second.time_limit) == (60.0, None)


def test_sacct_run_times_carry_over_to_other_processors_by_their_speed():
    first, _ = sacct.parse(SACCT, "jan.sacct", {"v100": 4.0, "k80": 1.0}).jobs
    assert first.run_time == {"v100": 3600.0, "k80": 14400.0}


@pytest.mark.parametrize(
    ("text", "line", "field"),
    [
        ("", 1, "header"),
        ("JobID|ElapsedRaw\n", 1, "Submit"),
        ("JobID|Submit\n", 1, "ElapsedRaw"),
        ("JobID|Submit|ElapsedRaw\n1|yesterday|5\n", 2, "Submit"),
        ("JobID|Submit|ElapsedRaw\n1|2024-01-01T00:00:00|-5\n", 2, "ElapsedRaw"),
        ("JobID|Submit|ElapsedRaw\n1|2024-01-01T00:00:00\n", 2, "ElapsedRaw"),
        ("JobID|Submit|Elapsed\n1|2024-01-01T00:00:00|soon\n", 2, "Elapsed"),
        ("JobID|Submit|ElapsedRaw|ReqMem\n1|2024-01-01T00:00:00|5|much\n", 2, "ReqMem"),
    ],
)
def test_bad_sacct_text_is_named_with_its_field(text, line, field):
    with pytest.raises(TraceError) as caught:
        sacct.parse(text, "s.txt")
    assert (caught.value.line, caught.value.field) == (line, field)


def test_the_format_is_found_from_the_name_or_the_first_line(tmp_path):
    for name, text, jobs in (
        ("a.swf.gz", gzip.compress((SWF_HEAD + SWF_JOB).encode(), mtime=0), 1),
        ("b.txt", (SWF_HEAD + SWF_JOB).encode(), 1),
        ("c.txt", SACCT.encode(), 2),
        ("d", GOOD.encode(), 1),
    ):
        (tmp_path / name).write_bytes(text)
        assert len(read_workload(str(tmp_path / name)).jobs) == jobs


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"what is this\n", "format"), (b"\xff\xfe\x00", "UTF-8"), (gzip.compress(b"x" * 999, mtime=0)[:20], "gzip")],
)
def test_a_file_that_cannot_be_read_says_why(content, words, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=words):
        read_workload(str(path))


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_workload(str(tmp_path / "none.swf"))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_no_text_does_anything_but_parse_or_a_trace_error(text):
    for parse in (swf.parse, jsonl.parse, sacct.parse):
        try:
            parse(text, "wild")
        except TraceError as error:
            assert "wild" in str(error)


def test_the_same_recipe_makes_the_same_jobs_and_another_seed_others():
    first = read_workload("synthetic:jobs=50,v100=4,k80=4", seed=1)
    assert first == read_workload("synthetic:jobs=50,v100=4,k80=4", seed=1)
    assert first.jobs != read_workload("synthetic:jobs=50,v100=4,k80=4", seed=2).jobs


def test_a_synthetic_workload_has_the_load_it_was_asked_for():
    workload = read_workload("synthetic:jobs=4000,load=0.7,v100=16,k80=16", seed=3)
    work = sum(job.gpus * min(job.run_time.values()) for job in workload.jobs)
    span = workload.jobs[-1].submit
    assert work / (span * 32) == pytest.approx(0.7, rel=0.05)
    assert all(job.run_time["v100"] <= job.run_time["k80"] for job in workload.jobs)
    ratios = {job.app: job.run_time["k80"] / job.run_time["v100"] for job in workload.jobs}
    assert max(ratios.values()) > 3 * min(ratios.values())  # apps differ in what they gain


@pytest.mark.parametrize("text", ["synthetic:jobs=none", "synthetic:jobs=0", "synthetic:load=-1", "synthetic:v100=0"])
def test_a_bad_recipe_is_refused(text):
    with pytest.raises(TraceError):
        read_workload(text)


def test_a_cluster_from_a_short_text():
    cluster = parse_cluster("v100=2x4,cpu=3x16")
    assert [(n.processor, n.cpus, n.gpus) for n in cluster.nodes] == [("v100", 64, 4)] * 2 + [("cpu", 16, 0)] * 3
    assert (cluster.gpus, cluster.units("cpu"), cluster.default_partition) == (8, 48, "v100")


@pytest.mark.parametrize("text", ["", "v100", "v100=0", "v100=x", "v100=1,v100=2", "=3"])
def test_a_bad_cluster_text_says_what_is_allowed(text):
    with pytest.raises(ClusterError, match="--cluster"):
        parse_cluster(text)


YAML = """
nodes:
  - {name: fast, count: 2, cpus: 8, memory_mb: 1000, gpus: 4, gpu_type: v100}
  - {name: slow, count: 1, cpus: 4, gpus: 2, gpu_type: k80}
partitions:
  - {name: gpu, nodes: [fast, slow]}
  - {name: short, nodes: [slow], max_time_s: 3600, default: true}
"""


def test_a_cluster_from_yaml(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(YAML)
    cluster = parse_cluster(str(path))
    assert [place.name for place in cluster.places] == ["gpu/v100", "gpu/k80", "short/k80"]
    assert [node.name for node in cluster.nodes] == ["fast0", "fast1", "slow"]
    assert (cluster.default_partition, cluster.places[2].max_time_s) == ("short", 3600.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("fast, count: 2", "fast, count: -2"), "below its minimum"),
        (("nodes: [fast, slow]", "nodes: [fats]"), "no group of nodes"),
        ((", gpu_type: v100", ""), "needs a gpu_type"),
        (("cpus: 8", "cores: 8"), "cores"),
        (("cpus: 8", "cpus: many"), "int"),
        (("nodes:", "{"), "c.yaml"),
    ],
)
def test_a_bad_cluster_file_says_where(change, words, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(YAML.replace(*change, 1))
    with pytest.raises(ClusterError, match=words):
        read_cluster(path)


def test_a_missing_cluster_file_says_so(tmp_path):
    with pytest.raises(ClusterError, match="cannot be read"):
        read_cluster(Path(tmp_path / "none.yaml"))


def test_a_cluster_as_slurm_shows_it():
    from advisor.cluster.types import ClusterState, Gres, Node, Partition

    state = ClusterState(
        cluster="site",
        release=(24, 11),
        taken_at=0.0,
        nodes=(
            Node("a", ("IDLE",), 8, 1000, gres=(Gres("gpu", 2, "v100"),)),
            Node("b", ("DOWN",), 8, 1000, gres=(Gres("gpu", 2, "v100"),)),
            Node("c", ("MIXED",), 8, 1000),
        ),
        partitions=(
            Partition("all", ("a", "b", "c"), default=True, max_time=60),
            Partition("off", ("a",), up=False),
            Partition("top", ("a",), priority_tier=9),
        ),
        jobs=(),
    )
    cluster = from_state(state)
    assert [place.name for place in cluster.places] == ["top/v100", "all/v100", "all/cpu"]
    assert [node.name for node in cluster.nodes] == ["a", "c"]
    assert (cluster.default_partition, cluster.places[1].max_time_s) == ("all", 3600.0)
