"""The mini-cluster as one unprivileged Docker container: its images, and the container itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from control.basics import (
    LOAD_PACKAGES,
    SOURCE,
    STATE,
    Release,
    alone,
    cluster_digest,
    debootstrap,
    fail,
    logged,
    packages_digest,
    proxies,
    run,
    say,
)
from control.kinds import Cluster, become, enter, home, host_folders

LABEL = "slurm-advisor.cluster"


def _there(tag: str) -> bool:
    return run("docker", "image", "inspect", tag).returncode == 0


def base_image(suite: str, fresh: bool) -> str:
    tag = f"slurm-advisor-base:{suite}"
    if not fresh and _there(tag):
        return tag
    if os.environ.get("ADVISOR_CLUSTER_PULL", "1") != "0":
        say(f"trying to pull debian:{suite} ...")
        pulled = run("docker", "pull", "--quiet", f"debian:{suite}", timeout=40)
        if pulled.returncode == 0:
            run("docker", "tag", f"debian:{suite}", tag)
            return tag
        say("it cannot be pulled from here: making the base with debootstrap")
    STATE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"base-{suite}.", dir=STATE) as folder:
        root = Path(folder) / "root"
        debootstrap(suite, root)
        pack = (
            'tar -C "$1" --numeric-owner --exclude="./var/cache/apt/archives/*.deb" '
            '--exclude="./var/lib/apt/lists/*" -c . | docker import - "$2"'
        )
        log = STATE / "log" / f"import-{suite}.log"
        logged(f"importing {tag}", log, "bash", "-o", "pipefail", "-c", pack, "bash", root, tag)
    return tag


@alone("build")
def image(release: Release, load: bool, fresh: bool = False) -> str:
    """The image of a release: its packages (the long part, rarely changed), and on top of them our files (seconds)."""
    kind = f"{release.name}-{'load-' if load else ''}"
    packages = f"slurm-advisor-packages:{kind}{packages_digest(release)}"
    tag = f"slurm-advisor-cluster:{kind}{cluster_digest(release)}"
    build = ("docker", "build", "--no-cache", "--force-rm")
    if fresh or not _there(packages):
        given = {
            **proxies(),
            "BASE": base_image(release.suite, fresh),
            "APT_OPTIONS": release.apt_options,
            "LOAD_PACKAGES": LOAD_PACKAGES if load else "",
        }
        options = [word for key, value in given.items() for word in ("--build-arg", f"{key}={value}")]
        step, log = f"installing Slurm {release.name} into {packages}", STATE / "log" / f"packages-{release.name}.log"
        logged(step, log, *build, "--network", "host", "--tag", packages, *options, SOURCE / "packages")
    if fresh or not _there(tag):
        log = STATE / "log" / f"build-{release.name}.log"
        logged(f"building {tag}", log, *build, "--tag", tag, "--build-arg", f"PACKAGES={packages}", SOURCE)
        _retire(tag, kind)
        _retire(packages, kind)
    return tag


def _retire(tag: str, kind: str) -> None:
    """Removes the images that this one replaces. The engine keeps those still in use: their clusters run on."""
    repository = tag.partition(":")[0]
    for other in run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", repository).stdout.split():
        if other != tag and re.fullmatch(re.escape(f"{repository}:{kind}") + "[0-9a-f]{12}", other):
            run("docker", "image", "rm", other)


class DockerCluster(Cluster):
    """A mini-cluster in a container."""

    def __init__(self, name: str, release: str, state: str, run_folder: str, etc_folder: str) -> None:
        self.name, self.release, self.state = name, release, state
        self.run_folder, self.etc_folder = run_folder, etc_folder
        self.container = f"slurm-advisor-{name}"

    @property
    def command(self) -> list[str]:
        return ["docker", "exec", self.container]

    def entry(self, user: str, *, terminal: bool = False) -> list[str]:
        options = ["--interactive", *(["--tty"] if terminal else []), "--user", user, "--workdir", home(user)]
        return ["docker", "exec", *options, "--env", f"HOME={home(user)}", "--env", f"USER={user}", self.container]

    def quick_command(self) -> list[str]:
        """By nsenter where that can be: the engine takes 0.13 s of CPU time for each `exec`, Slurm's commands 0.02."""
        first = self._first()
        return enter(first, "/", "HOME=/root") if first else self.command

    def quick_entry(self, user: str) -> list[str]:
        first = self._first()
        if not first:
            return self.entry(user)
        return [*enter(first, home(user), f"HOME={home(user)}", f"USER={user}"), *become(user)]

    def _first(self) -> int | None:
        """Its first process, where the caller may enter beside it: as root, with the engine on this host."""
        if os.geteuid() != 0 or not shutil.which("nsenter"):
            return None
        told = run("docker", "inspect", "--format", "{{.State.Pid}} {{.Id}}", self.container).stdout.split()
        try:
            known = Path(f"/proc/{told[0]}/cgroup").read_text()
        except (IndexError, OSError):
            return None
        return int(told[0]) if told[1] in known else None

    def place(self) -> dict[str, str]:
        return {"container": self.container}

    def told(self) -> list[str]:
        result = run("docker", "logs", self.container)
        return (result.stdout + result.stderr).splitlines()

    def is_running(self) -> bool:
        return run("docker", "inspect", "--format", "{{.State.Running}}", self.container).stdout.strip() == "true"

    def remove(self) -> None:
        removed = run("docker", "rm", "--force", "--volumes", self.container)
        if removed.returncode:
            fail(f"cluster '{self.name}' could not be removed: {removed.stderr.strip()}")
        shutil.rmtree(STATE / self.name, ignore_errors=True)


def clusters() -> Iterator[DockerCluster]:
    """Every cluster in Docker, running or not. Fails where no engine answers."""
    asked = run("docker", "ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.ID}}")
    if asked.returncode:
        fail(f"no Docker engine answers ({asked.stderr.strip()}): scripts/cluster engine starts one, as root")
    listed = asked.stdout.split()
    for details in json.loads(run("docker", "inspect", *listed).stdout or "[]") if listed else []:
        labels = details["Config"]["Labels"]
        mounts = {m["Destination"]: m["Source"] for m in details["Mounts"]}
        yield DockerCluster(
            labels[LABEL],
            labels[f"{LABEL}.release"],
            details["State"]["Status"],
            mounts.get("/run/slurm-advisor", ""),
            mounts.get("/etc/slurm-advisor", ""),
        )


def start(name: str, release: Release, shared: str | None, load: bool, mounts: Sequence[Path] = ()) -> DockerCluster:
    """A new container of that name, its services starting."""
    tag = image(release, load)
    run_folder, etc_folder = host_folders(name, shared)
    cluster = DockerCluster(name, release.name, "running", str(run_folder), str(etc_folder))
    # SYS_PTRACE: without it root cannot read another user's /proc/PID/io, and accounting has no memory or CPU figures.
    options = ["--detach", "--name", cluster.container, "--hostname", "ctl", "--cap-add", "SYS_PTRACE"]
    options += ["--label", f"{LABEL}={name}", "--label", f"{LABEL}.release={release.name}"]
    options += ["--volume", f"{run_folder}:/run/slurm-advisor", "--volume", f"{etc_folder}:/etc/slurm-advisor"]
    options += [word for folder in mounts for word in ("--volume", f"{folder}:{folder}:ro")]
    started = run("docker", "run", *options, tag)
    if started.returncode:
        run("docker", "rm", "--force", cluster.container)
        fail(f"the engine could not start cluster '{name}': {started.stderr.strip()}")
    return cluster
