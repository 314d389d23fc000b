"""The agent finds the jobs of its node in every layout of cgroups, and by their processes where there is none."""

import os
import stat
import subprocess
import time
from pathlib import Path

import pytest

from advisor.telemetry import processes
from advisor.telemetry.cgroups import Cgroups
from advisor.telemetry.jobs import Jobs
from advisor.telemetry.notes import Notes

SLUID = "sFX9M7H8BG1100"  # of a real job of Slurm 26.05


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def v2_step(job, pids, stepd=None, step="step_0"):
    put(job / "cgroup.procs", "")
    put(job / step / "user/task_0/cgroup.procs", "".join(f"{pid}\n" for pid in pids))
    put(job / step / "slurm/cgroup.procs", f"{stepd}\n" if stepd else "")


def v2_tree(root, scope="system.slice/slurmstepd.scope", job="job_12", pids=(101, 102), stepd=100):
    put(root / "cgroup.controllers", "cpu io memory\n")
    folder = root / scope / job
    v2_step(folder, pids, stepd)
    put(folder / "cpu.stat", "usage_usec 3500000\nuser_usec 3000000\nsystem_usec 500000\nnr_periods 0\n")
    put(folder / "memory.current", "1048576\n")
    put(folder / "memory.stat", "anon 524288\nfile 1000\npgfault 4711\npgmajfault 3\n")
    put(folder / "io.stat", "8:0 rbytes=100 wbytes=2000 rios=1\n8:16 rbytes=10 wbytes=200 rios=1\n")
    return folder


def proc(root, pid, title="sleep", parent=1, **variables):
    put(root / str(pid) / "cmdline", title)
    put(root / str(pid) / "environ", "\0".join(f"{k}={v}" for k, v in variables.items()))


def find(tmp_path, node="n1", scontrol=("false",), cluster=""):
    notes = Notes()
    jobs = Jobs(node, notes, Cgroups(node, tmp_path / "cgroup"), tmp_path / "proc", scontrol, cluster)
    return jobs, notes


def listing(tmp_path, text, code=0):
    """A scontrol that prints this."""
    path = tmp_path / "scontrol"
    path.write_text(f"#!/bin/sh\ncat <<'EOF'\n{text}\nEOF\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return (str(path),)


def test_cgroup_v2_names_the_job_and_tells_its_usage(tmp_path):
    v2_tree(tmp_path / "cgroup")
    proc(tmp_path / "proc", 101, SLURM_JOB_ID="12", SLURM_RESTART_COUNT="2", SLURM_CLUSTER_NAME="mini")
    jobs, _ = find(tmp_path)
    (job,) = jobs.now()
    assert (job.key.cluster, job.key.job_id, job.key.restarts) == ("mini", 12, 2)
    assert job.pids == [101, 102]  # slurmstepd is not of the job
    assert job.cgroup.perf_name == "system.slice/slurmstepd.scope/job_12"
    assert job.cgroup.usage() == {
        "cpu.user": 3.0,
        "cpu.system": 0.5,
        "faults": 4711,
        "faults.major": 3,
        "memory.anonymous": 524288,
        "memory": 1048576,
        "io.read": 110,
        "io.write": 2200,
    }


@pytest.mark.parametrize(
    "scope",
    [
        "system.slice/n1_slurmstepd.scope",
        "site.slice/slurmstepd.scope",
        "docker.slice/c.scope/system.slice/slurmstepd.scope",
    ],
)
def test_the_scope_is_found_wherever_slurmd_puts_it(tmp_path, scope):
    v2_tree(tmp_path / "cgroup", scope)
    jobs, _ = find(tmp_path)
    assert [job.key.job_id for job in jobs.now()] == [12]


def test_jobs_of_another_slurmd_on_the_host_are_left_alone(tmp_path):
    v2_tree(tmp_path / "cgroup", "system.slice/n1_slurmstepd.scope", "job_1")
    v2_tree(tmp_path / "cgroup", "system.slice/n2_slurmstepd.scope", "job_2")
    jobs, _ = find(tmp_path)
    assert [job.key.job_id for job in jobs.now()] == [1]


def test_a_sluid_is_mapped_by_the_title_of_its_slurmstepd(tmp_path):
    v2_tree(tmp_path / "cgroup", job=SLUID)
    proc(tmp_path / "proc", 100, "slurmstepd: [77.batch]")
    # What a user writes into the environment does not count where Slurm itself tells.
    proc(tmp_path / "proc", 101, SLURM_JOB_ID="1", SLURM_JOB_SLUID=SLUID)
    jobs, _ = find(tmp_path)
    assert [job.key.job_id for job in jobs.now()] == [77]


def test_a_sluid_is_mapped_by_the_environment_where_no_slurmstepd_is_seen(tmp_path):
    v2_tree(tmp_path / "cgroup", job=SLUID, stepd=None)
    proc(tmp_path / "proc", 101, SLURM_JOB_ID="2", SLURM_JOB_SLUID="sFX9M7H8BFYF00")
    proc(tmp_path / "proc", 102, SLURM_JOB_ID="78", SLURM_JOB_SLUID=SLUID)
    jobs, _ = find(tmp_path)
    assert [job.key.job_id for job in jobs.now()] == [78]


def test_a_sluid_is_mapped_by_scontrol_as_the_last_resort(tmp_path):
    v2_tree(tmp_path / "cgroup", job=SLUID, stepd=None)
    scontrol = listing(tmp_path, "PID      JOBID    STEPID   LOCALID GLOBALID\n102      79       batch    0       0")
    jobs, _ = find(tmp_path, scontrol=scontrol)
    assert [job.key.job_id for job in jobs.now()] == [79]


def test_a_folder_that_only_looks_like_a_sluid_is_no_job(tmp_path):
    v2_tree(tmp_path / "cgroup", job="system")
    v2_tree(tmp_path / "cgroup", job="sFX9M7H8BG11IL")  # no I and no L in that alphabet
    jobs, _ = find(tmp_path)
    assert jobs.now() == []


@pytest.mark.parametrize("top", ["slurm", "slurm_n1"])
@pytest.mark.parametrize("accounting", ["cpuacct", "cpu,cpuacct"])
def test_cgroup_v1_names_the_job_and_tells_its_usage(tmp_path, top, accounting):
    root = tmp_path / "cgroup"
    job = f"{top}/uid_2001/job_34"
    put(root / "freezer" / job / "step_batch/cgroup.procs", "201\n")
    put(root / accounting / job / "cpuacct.stat", "user 250\nsystem 50\n")
    put(root / accounting / job / "step_batch/cgroup.procs", "201\n")
    put(root / "memory" / job / "memory.usage_in_bytes", "4096\n")
    put(root / "memory" / job / "memory.stat", "rss 1\ntotal_rss 2048\ntotal_pgfault 11\ntotal_pgmajfault 1\n")
    jobs, _ = find(tmp_path, cluster="mini")
    (found,) = jobs.now()
    assert (found.key.job_id, found.pids, found.cgroup.perf_name) == (34, [201], "")
    tick = os.sysconf("SC_CLK_TCK")
    assert found.cgroup.usage() == {
        "cpu.user": 250 / tick,
        "cpu.system": 50 / tick,
        "faults": 11,
        "faults.major": 1,
        "memory.anonymous": 2048,
        "memory": 4096,
    }


def test_without_cgroups_jobs_are_found_by_their_processes(tmp_path):
    scontrol = listing(
        tmp_path,
        "PID      JOBID    STEPID   LOCALID GLOBALID\n"
        "453      2        batch    0       0        \n"
        "454      2        batch    -       -        \n"
        "-1       3        0        0       0        \n"
        "460      4        extern   0       0        ",
    )
    proc(tmp_path / "proc", 453, SLURM_JOB_ID="2", SLURM_CLUSTER_NAME="mini", SLURM_RESTART_COUNT="1")
    jobs, _ = find(tmp_path, scontrol=scontrol)
    found = {job.key.job_id: job for job in jobs.now()}
    assert set(found) == {2, 4}
    assert found[2].pids == [453, 454] and found[2].key.restarts == 1 and found[2].key.cluster == "mini"


def test_scontrol_is_not_asked_where_slurmd_keeps_cgroups(tmp_path):
    (v2_tree(tmp_path / "cgroup") / "step_0/user/task_0/cgroup.procs").write_text("")
    jobs, notes = find(tmp_path, scontrol=listing(tmp_path, "1 2 3", code=1))
    assert jobs.now() == []
    assert notes.take() == []


def test_a_node_where_no_job_runs_is_no_fault(tmp_path):
    path = tmp_path / "scontrol"
    path.write_text("#!/bin/sh\necho 'No job steps exist on this node.' >&2\nexit 1\n")
    path.chmod(0o755)
    jobs, notes = find(tmp_path, scontrol=(str(path),))
    assert jobs.now() == [] and notes.take() == []


def test_scontrol_that_fails_is_noted_once(tmp_path):
    jobs, notes = find(tmp_path, scontrol=listing(tmp_path, "", code=1))
    assert jobs.now() == jobs.now() == []
    assert [(note.subject, note.what) for note in notes.take()] == [("jobs", "scontrol failed")]


def test_what_children_used_is_not_lost_when_they_end_and_not_counted_twice():
    spin = "import os,time\nt=time.process_time()\nwhile time.process_time()-t<{}: pass\n"
    program = f"import subprocess,sys,time\nsys.stdin.readline()\nsubprocess.run([sys.executable,'-c',{spin.format(0.4)!r}])\nprint('done',flush=True)\nsys.stdin.readline()\n"  # noqa: E501
    parent = subprocess.Popen(["python3", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        totals = processes.ProcessTotals()
        used = 0.0

        def look():
            out = subprocess.run(["pgrep", "-P", str(parent.pid)], capture_output=True, text=True).stdout
            pids = [parent.pid, *(int(pid) for pid in out.split())]
            found = [p for pid in pids if (p := processes.read_process(pid))]
            step = totals.advance(found, {}, fresh=False)
            return step.get("cpu.user", 0.0) + step.get("cpu.system", 0.0)

        look()
        parent.stdin.write(b"go\n")
        parent.stdin.flush()
        for _ in range(5):
            time.sleep(0.1)
            used += look()
        parent.stdout.readline()
        used += look()
        assert 0.39 <= used <= 0.75  # the spinning, and what starting Python takes
    finally:
        parent.kill()
        parent.wait()


def test_a_process_whose_parent_is_elsewhere_takes_its_books_along():
    totals = processes.ProcessTotals()

    def process(pid, parent, cpu):
        return processes.Process(pid, parent, 1, {"cpu.user": cpu}, 0.0, 1)

    assert totals.advance([process(10, 1, 5.0), process(11, 10, 2.0)], {}, fresh=True) == {"cpu.user": 7.0}
    # 10 ended, its parent is not of the job; 11 went on.
    assert totals.advance([process(11, 1, 2.5)], {}, fresh=False) == {"cpu.user": 0.5}


def test_switches_of_real_threads_are_counted():
    before = sum(processes.switches(os.getpid()).values())
    for _ in range(20):
        time.sleep(0.001)
    assert sum(processes.switches(os.getpid()).values()) >= before + 20


def test_a_process_tells_its_io(tmp_path):
    before = processes.read_process(os.getpid())
    (tmp_path / "file").write_bytes(os.urandom(1 << 20))
    after = processes.read_process(os.getpid())
    assert after.totals["io.write.calls"] - before.totals["io.write.calls"] >= 1 << 20
    assert processes.read_process(2**22 + 1) is None
    assert processes.environment(Path("/proc/self").resolve().name) == {
        key: value for key, value in os.environ.items() if key.startswith("SLURM")
    }
