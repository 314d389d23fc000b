"""Programs enter the mini-cluster by a quicker way than `docker exec`, to the same place and as the same user."""

import os
import subprocess

import pytest

from tests.slurm.site import Cluster

# Who one is, where, and in which namespaces.
LOOK = (
    "id -u; id -g; id -G; hostname; pwd; echo $HOME; echo $PATH; "
    "for kind in mnt uts ipc net pid; do readlink /proc/self/ns/$kind; done"
)


@pytest.mark.parametrize(("user", "home"), [("root", "/root"), ("alice", "/home/alice"), ("bob", "/home/bob")])
def test_the_quick_way_in_leads_to_where_docker_exec_leads(cluster: Cluster, user: str, home: str) -> None:
    options = ["--user", user, "--workdir", home, "--env", f"HOME={home}"]
    plain = ["docker", "exec", *options, cluster.container, "sh", "-c", LOOK]
    expected = subprocess.run(plain, capture_output=True, text=True, check=True).stdout
    assert expected.count("\n") == 12
    assert cluster.ok("sh", "-c", LOOK, user=user) == expected


def test_root_is_told_the_quick_way_and_whoever_is_not_gets_docker_exec(cluster: Cluster) -> None:
    prefix = ["nsenter", "--target"] if os.geteuid() == 0 else ["docker", "exec"]
    assert cluster.command[:2] == prefix
    done = subprocess.run([*cluster.command, "sh", "-c", "exit 7"], check=False)
    assert done.returncode == 7, "what a command returns comes through"
