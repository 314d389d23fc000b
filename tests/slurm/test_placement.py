"""Plain sbatch on an unmodified Slurm: jobs land where they were advised, or stay as they were."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from tests.slurm.site import HEAVY, PLAIN, Site


def landed(job: dict[str, str]) -> tuple[str, str]:
    """Partition and the kind of node (v, p, k, c) of a job that runs or ran."""
    return job["Partition"], job["NodeList"][:1]


def test_a_gpu_job_without_a_type_lands_on_the_type_and_partition_advised(site: Site) -> None:
    sent = site.cluster.sbatch("-p", "k80,p100,v100", "--gres=gpu:1", script=HEAVY)
    assert sent.code == 0
    job = site.cluster.wait_job(sent.job_id, ["RUNNING", "COMPLETED"])
    decision = site.decision(sent.job_id)
    assert decision["action"] == "rewrite" and decision["applied"]
    chosen = json.loads(decision["candidates"])[decision["chosen"]]
    assert landed(job) == (chosen["partition"], chosen["partition"][0])
    assert job["Partition"] == "v100", "the annotation says it is much faster there, and everything is idle"
    assert "slurm-advisor:" in sent.err, "the user is told in one line"
    assert len([line for line in sent.err.splitlines() if "slurm-advisor" in line]) == 1


def test_in_shadow_the_same_job_is_untouched_and_the_decision_is_logged(site: Site) -> None:
    site.reconfigure(modes={"default": "shadow"})
    sent = site.cluster.sbatch("-p", "k80,p100,v100", "--gres=gpu:1", "--hold", script=HEAVY)
    job = site.cluster.job(sent.job_id)
    assert job["Partition"] == "k80,p100,v100"
    assert "v100" not in job.get("TresPerNode", "")
    assert "slurm-advisor" not in sent.err
    decision = site.decision(sent.job_id)
    assert (decision["mode"], decision["applied"]) == ("shadow", 0)
    assert decision["preferred"] != 0, "it would have moved the job"


def test_in_advise_mode_the_user_is_told_and_the_job_stays(site: Site) -> None:
    site.reconfigure(modes={"default": "advise"})
    sent = site.cluster.sbatch("-p", "k80,p100,v100", "--gres=gpu:1", "--hold", script=HEAVY)
    assert site.cluster.job(sent.job_id)["Partition"] == "k80,p100,v100"
    assert "slurm-advisor" in sent.err and "v100" in sent.err


def test_modes_differ_by_user(site: Site) -> None:
    site.reconfigure(modes={"default": "shadow", "users": {"bob": "enforce"}})
    for user, partition in (("alice", "k80,v100"), ("bob", "v100")):
        sent = site.cluster.sbatch("-p", "k80,v100", "--gres=gpu:1", "--hold", script=HEAVY, user=user)
        assert site.cluster.job(sent.job_id)["Partition"] == partition


def test_a_variable_given_with_export_reaches_the_advisor_and_the_job(site: Site) -> None:
    if site.cluster.release == "26.05":
        pytest.skip(
            "26.05's slurmd wants a PID namespace for --export=ALL,NAME=…, which a plain container may not make"
        )
    sent = site.cluster.sbatch(
        "-p",
        "k80,v100",
        "--gres=gpu:1",
        "--export=ALL,ADVISOR_APP=exported",
        script='#!/bin/sh\ntest "$ADVISOR_APP" = exported\n',
    )
    assert site.cluster.wait_job(sent.job_id, ["COMPLETED", "FAILED", "NODE_FAIL"])["JobState"] == "COMPLETED"
    assert site.decision(sent.job_id)["app"] == "exported"


def test_the_disable_file_turns_the_hook_off_at_the_next_submission(site: Site) -> None:
    (site.cluster.etc_folder / "disable").touch()
    sent = site.cluster.sbatch("-p", "k80,v100", "--gres=gpu:1", "--hold", script=HEAVY)
    assert site.cluster.job(sent.job_id)["Partition"] == "k80,v100"
    assert site.token(sent.job_id) is None
    (site.cluster.etc_folder / "disable").unlink()
    sent = site.cluster.sbatch("-p", "k80,v100", "--gres=gpu:1", "--hold", script=HEAVY)
    assert site.cluster.job(sent.job_id)["Partition"] == "v100"


# How users ask for GPUs, and whether it leaves anything open. {} is filled with nothing or a type.
PLACED = {
    "gres": ["-p", "k80,v100", "--gres=gpu:1"],
    "gres without a count": ["-p", "k80,v100", "--gres=gpu"],
    "gpus": ["-p", "k80,v100", "--gpus=1"],
    "gpus-per-node": ["-p", "k80,v100", "--gpus-per-node=1"],
    "gpus-per-task": ["-p", "k80,v100", "--ntasks=1", "--gpus-per-task=1"],
    "gpus-per-socket": ["-p", "k80,v100", "--gpus-per-socket=1", "--sockets-per-node=1"],
    "two gpus": ["-p", "k80,v100", "--gres=gpu:2"],
    "with cpus and memory": ["-p", "k80,v100", "--gres=gpu:1", "-c", "4", "--mem=8G"],
    "memory per gpu": ["-p", "k80,v100", "--gpus=1", "--mem-per-gpu=2G"],
    "cpus per gpu": ["-p", "k80,v100", "--gpus=1", "--cpus-per-gpu=2"],
    "array": ["-p", "k80,v100", "--gres=gpu:1", "--array=0-3"],
    "dependency": ["-p", "k80,v100", "--gres=gpu:1", "--dependency=singleton"],
    "constraint that the place satisfies": ["-p", "k80,v100", "--gres=gpu:1", "--constraint=gpu"],
    "mixed partition": ["-p", "short", "--gres=gpu:1", "-t", "5"],
}
LEFT_ALONE = {
    "one partition with one type": ["-p", "k80", "--gres=gpu:1"],
    "a type of the user's own": ["-p", "k80,p100", "--gres=gpu:k80:1"],
    "reservation": ["-p", "k80,v100", "--gres=gpu:1", "--reservation=keepout"],
    "nodelist": ["-p", "k80,v100", "--gres=gpu:1", "--nodelist=k1"],
    "constraint that no other place satisfies": ["-p", "k80,v100", "--gres=gpu:1", "--constraint=kepler"],
    "het job": ["-p", "k80,v100", "--gres=gpu:1", ":", "-p", "cpu"],
}


@pytest.mark.parametrize("form", PLACED)
def test_each_way_to_ask_for_gpus_is_placed(site: Site, form: str) -> None:
    sent = site.cluster.sbatch("--hold", *PLACED[form], script=HEAVY)
    assert sent.code == 0, sent.err
    job = site.cluster.job(sent.job_id)
    decision = site.decision(sent.job_id)
    assert decision["applied"], decision["why"]
    if "short" in PLACED[form]:
        assert job["Partition"] == "short" and "v100" in job["TresPerNode"], "the type is pinned, the partition stays"
    else:
        assert job["Partition"] == "v100", decision["why"]
    site.cluster.ok("scontrol", "release", str(sent.job_id))
    if form != "array":
        done = site.cluster.wait_job(sent.job_id, ["RUNNING", "COMPLETED"])
        assert done["NodeList"] == "v1"


@pytest.mark.parametrize("form", LEFT_ALONE)
def test_what_the_user_fixed_stays(site: Site, form: str) -> None:
    if form == "reservation":
        site.cluster.ok(
            "scontrol", "create", "reservation", "reservationname=keepout", "starttime=now", "duration=60",
            "users=alice,root", "nodes=k2", "flags=ignore_jobs",
        )  # fmt: skip
    try:
        sent = site.cluster.sbatch("--hold", *LEFT_ALONE[form], script=HEAVY)
        assert sent.code == 0, sent.err
        job = site.cluster.job(sent.job_id)
        options = LEFT_ALONE[form]
        assert job["Partition"] == options[options.index("-p") + 1]
        assert "slurm-advisor" not in sent.err
    finally:
        if form == "reservation":
            site.cancel_all()
            site.cluster.ok("scontrol", "delete", "reservationname=keepout")


def test_an_array_is_decided_once_and_every_task_goes_there(site: Site) -> None:
    before = site.status()["decisions"]["submissions"]
    sent = site.cluster.sbatch("-p", "k80,v100", "--gres=gpu:1", "--array=0-5", script=HEAVY)
    decision = site.decision(sent.job_id)
    assert site.status()["decisions"]["submissions"] == before + 1
    chosen = json.loads(decision["candidates"])[decision["chosen"]]["partition"]
    assert chosen == "v100", f"as submitted, four of the six would start on k80s: {decision['why']}"
    rows = site.cluster.ok("squeue", "-h", "-r", "-j", str(sent.job_id), "-o", "%P").split()
    assert rows and set(rows) == {chosen}


def test_test_only_is_answered_and_submits_nothing(site: Site) -> None:
    sent = site.cluster.sbatch("--test-only", "-p", "k80,v100", "--gres=gpu:1", script=HEAVY)
    assert sent.code == 0 and "to start at" in sent.err
    assert not site.cluster.ok("squeue", "-h").strip()


def test_srun_and_salloc_are_placed_too(site: Site) -> None:
    for program in ("srun", "salloc"):
        done = site.cluster.run(
            program, "-p", "k80,v100", "--gres=gpu:1", "-t", "2", "sh", "-c", "echo ran in $SLURM_JOB_PARTITION",
            user="alice", env={"ADVISOR_DFG": "not used: only sbatch hands over the environment"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        # No annotation reaches the daemon, so nothing says that a v100 is faster; any of the two will do.
        assert "ran in v100" in done.stdout or "ran in k80" in done.stdout


def test_wrap_is_placed(site: Site) -> None:
    sent = site.cluster.sbatch(
        "-p", "k80,v100", "--gres=gpu:1", "--hold", "--wrap", "sleep 1", script="",
        env={"ADVISOR_DFG": "kernels: {k: {on: [gpu], work: 3.0e+14}}"},
    )  # fmt: skip
    assert sent.code == 0, sent.err
    assert site.cluster.job(sent.job_id)["Partition"] == "v100"


@pytest.mark.parametrize("place", ["environment", "comment", "extra"])
def test_the_annotation_is_found_in_each_place(site: Site, place: str) -> None:
    text = f"app: found-in-{place}, kernels: {{k: {{on: [gpu], work: 3.0e+14}}}}"
    options, env = ["-p", "k80,v100", "--gres=gpu:1", "--hold"], {}
    if place == "environment":
        env["ADVISOR_DFG"] = f"{{{text}}}"
    elif place == "comment":
        options.append(f"--comment=paper 7 advisor:{{{text}}} urgent")
    elif site.cluster.release == "22.05":
        pytest.skip("sbatch --extra came with Slurm 23.02")
    else:
        options.append(f"--extra=advisor:{{{text}}}")
    sent = site.cluster.sbatch(*options, env=env)
    assert sent.code == 0, sent.err
    decision = site.decision(sent.job_id)
    assert decision["app"] == f"found-in-{place}"
    assert site.cluster.job(sent.job_id)["Partition"] == "v100"


def test_flexible_lets_the_command_line_be_overridden(site: Site) -> None:
    script = HEAVY.replace("sleep 1", "#ADVISOR flexible: [partition, gpu_type]\nsleep 1")
    sent = site.cluster.sbatch("-p", "k80", "--gres=gpu:k80:1", "--hold", script=script)
    job = site.cluster.job(sent.job_id)
    assert job["Partition"] in ("v100", "restricted", "short"), "all lead to the v100s, and alice may use them"
    assert "v100" in job["TresPerNode"] and "k80" not in job["TresPerNode"]


def test_advisor_off_leaves_the_job_alone(site: Site) -> None:
    sent = site.cluster.sbatch("-p", "k80,v100", "--gres=gpu:1", "--hold", script="#!/bin/sh\n#ADVISOR off\nsleep 1\n")
    assert site.cluster.job(sent.job_id)["Partition"] == "k80,v100"


def test_a_user_is_never_sent_where_he_has_no_rights(site: Site) -> None:
    """`restricted` holds the only idle v100s; bob's account may not use it."""
    for user, account in (("bob", "biology"), ("alice", "physics")):
        script = HEAVY.replace("sleep 1", "#ADVISOR flexible: [partition]\nsleep 1")
        sent = site.cluster.sbatch("-p", "k80", "--gres=gpu:1", "--hold", script=script, user=user)
        candidates = {c["partition"] for c in json.loads(site.decision(sent.job_id)["candidates"])}
        assert ("restricted" in candidates) == (account == "physics"), candidates


def test_a_time_limit_above_a_partitions_maximum_never_goes_there(site: Site) -> None:
    script = HEAVY.replace("sleep 1", "#ADVISOR flexible: [partition]\nsleep 1")
    for limit, allowed in (("9", True), ("11", False)):
        sent = site.cluster.sbatch("-p", "k80", "--gres=gpu:1", "-t", limit, "--hold", script=script)
        candidates = {c["partition"] for c in json.loads(site.decision(sent.job_id)["candidates"])}
        assert ("short" in candidates) == allowed, (limit, candidates)


def test_counts_memory_cpus_and_limits_never_change(site: Site) -> None:
    options = ["-p", "k80,v100", "--gres=gpu:2", "-c", "3", "--mem=5G", "-t", "17", "-N", "1", "--hold"]
    placed = site.cluster.job(site.cluster.sbatch(*options, script=HEAVY).job_id)
    (site.cluster.etc_folder / "disable").touch()
    alone = site.cluster.job(site.cluster.sbatch(*options, script=HEAVY).job_id)
    assert placed["Partition"] == "v100"
    for key in ("NumNodes", "NumCPUs", "CPUs/Task", "MinMemoryNode", "TimeLimit"):
        assert placed[key] == alone[key], key


def test_a_burst_is_spread_over_the_types(site: Site) -> None:
    """Ten at once: each decision counts with the ones just made, though Slurm has not been asked again."""
    site.reconfigure(slurm={"poll_s": 60})
    for _ in range(10):
        assert site.cluster.sbatch("-p", "k80,p100,v100", "--gres=gpu:1", script=HEAVY).code == 0
    partitions = [row["set_fields"] for row in site.rows("select * from decisions order by decided_at desc limit 10")]
    assert len({json.loads(s).get("partition") for s in partitions}) > 1


def test_a_burst_of_alike_jobs_takes_prepared_answers_and_is_spread_as_if_each_were_asked_for(site: Site) -> None:
    """The same script again and again, as one user; then the same jobs, each under a name of its own."""
    script = HEAVY.replace("app: heavy", f"app: heavy{next(site.cluster.apps)}")
    spread: dict[str, Counter[str]] = {}
    seen: set[str] = set()
    for options in ("", "-J job$i"):
        site.cancel_all()
        site.reconfigure(slurm={"poll_s": 60})
        # Pauses as a person's loop has them; a busy machine needs them to have prepared the next answer.
        burst = (
            f"for i in $(seq 16); do sbatch -Q --hold -p k80,p100,v100 --gres=gpu:1 {options} job.sh || exit 1; "
            "sleep 0.1; done"
        )
        site.cluster.ok("sh", "-c", f"cat > job.sh && {burst}", user="alice", stdin=script)
        queue = site.cluster.ok("squeue", "-h", "-o", "%P", "-u", "alice").split()
        jobs = [line for line in site.cluster.ok("scontrol", "-o", "show", "job").splitlines() if "=PENDING" in line]
        tokens = re.findall(r"advisor=([\w-]+)", "\n".join(jobs))
        assert len(queue) == 16 and len(set(tokens) - seen) == 16, "each job has a token of its own"
        seen.update(tokens)
        counts = site.status()["decisions"]
        assert counts["submissions"] == 16
        if options:
            assert counts["prepared"] == 0
        else:
            assert counts["prepared"] >= 8, "most were answered before they came"
        site.stop()  # writes its log out
        logged = Counter(row["token"] for row in site.rows("select token from decisions"))
        assert all(logged[token] == 1 for token in seen)
        spread[options] = Counter(queue)
    alike, asked = spread.values()
    assert len(alike) > 1 and sum((alike - asked).values()) <= 2, f"{alike}, but {asked} when asked"


def test_explain_tells_the_whole_story(site: Site) -> None:
    sent = site.cluster.sbatch("-p", "k80,v100", "--gres=gpu:1", script=HEAVY)
    site.cluster.wait_job(sent.job_id, ["COMPLETED"])
    site.advisor("collect")
    told = site.advisor("explain", str(sent.job_id))
    assert told.returncode == 0, told.stderr
    for word in ("v100", "k80", "heavy", "COMPLETED"):
        assert word in told.stdout
    assert json.loads(site.advisor("explain", str(sent.job_id), "--json").stdout)["decision"]["app"].startswith("heavy")


def test_a_dry_run_says_what_would_be_advised_and_leaves_no_trace(site: Site, tmp_path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(HEAVY)
    before = site.status()["decisions"]["submissions"]
    told = site.advisor("advise", "--user", "alice", str(script), "-p", "k80,v100", "--gres=gpu:1")
    assert told.returncode == 0, told.stderr
    assert "v100" in told.stdout and "rewrite" in told.stdout
    assert site.status()["decisions"]["submissions"] == before


def test_a_site_with_its_own_job_submit_keeps_its_rules(site: Site, tmp_path) -> None:
    """The site refuses jobs without a time limit and names an account; both still work with our two lines in it."""
    from tests.slurm.site import ROOT

    (tmp_path / "advisor.lua").write_bytes((ROOT / "slurm/advisor.lua").read_bytes())
    (tmp_path / "job_submit.lua").write_text(
        """
local advisor = require "advisor"
advisor.configure{timeout_ms = 500}
function slurm_job_submit(job_desc, part_list, uid)
  if job_desc.time_limit == 4294967294 then
    slurm.log_user("this site wants a time limit")
    return slurm.ERROR
  end
  job_desc.comment = "seen by the site"
  advisor.submit(job_desc, part_list, uid)
  return slurm.SUCCESS
end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""
    )
    site.enable_hook(tmp_path)
    try:
        refused = site.cluster.sbatch("-p", "k80,v100", "--gres=gpu:1", script=HEAVY)
        assert refused.code != 0 and "this site wants a time limit" in refused.err
        sent = site.cluster.sbatch("-p", "k80,v100", "--gres=gpu:1", "-t", "5", "--hold", script=HEAVY)
        job = site.cluster.job(sent.job_id)
        assert job["Partition"] == "v100"
        assert job["Comment"].startswith("seen")
    finally:
        site.enable_hook()


@pytest.mark.parametrize("script", [PLAIN, HEAVY])
def test_a_job_that_slurm_refuses_is_refused_and_one_it_takes_is_taken(site: Site, script: str) -> None:
    forms = [
        ["-p", "k80,v100", "--gres=gpu:1"],
        ["--gres=gpu:1"],  # the default partition has no GPUs
        ["-p", "nowhere"],
        ["-p", "k80", "--gres=gpu:9"],
        ["-p", "k80,v100", "--gres=gpu:a100:1"],
        ["-p", "short", "-t", "60"],
        ["-p", "restricted", "--gres=gpu:1"],
        ["-p", "k80,v100", "--gres=gpu:1", "--mem=500G"],
        ["-p", "k80,v100", "--gres=gpu:1", "--constraint=nothere"],
        ["-p", "cpu", "-c", "24"],
        ["-c", "1000"],
        ["--gpus=1", "-p", "cpu"],
        ["--account=biology"],
        ["-p", "k80,v100", "--gres=gpu:1", "-N", "2"],
        ["--gres=shard:2", "-p", "k80,p100"],
    ]
    codes: dict[bool, list[int]] = {}
    for hook in (False, True):
        disable = site.cluster.etc_folder / "disable"
        disable.unlink(missing_ok=True) if hook else disable.touch()
        codes[hook] = [site.cluster.sbatch("--hold", *form, script=script, user="bob").code for form in forms]
    assert codes[True] == codes[False], [f for f, a, b in zip(forms, codes[True], codes[False], strict=True) if a != b]
    assert 0 in codes[True] and 1 in codes[True]
