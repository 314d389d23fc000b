"""What every mini-cluster can do, whichever way it is kept: the commands of `scripts/cluster` know only this."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

from control.basics import STATE, Failure, run

# The slurm user of Debian's packages, the same in every suite. The daemon's socket must be open to it.
SLURM_ID = 64030
READY = "/run/services.ready"
USERS = ("root", "alice", "bob")
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Cluster(ABC):
    """One mini-cluster, running or not."""

    name: str
    release: str
    state: str  # "running", else why not
    run_folder: str  # on the host; /run/slurm-advisor inside
    etc_folder: str  # on the host; /etc/slurm-advisor inside

    @property
    @abstractmethod
    def command(self) -> list[str]:
        """The words before a command that runs it inside, as root: what a daemon on the host takes as its prefix."""

    @abstractmethod
    def entry(self, user: str, *, terminal: bool = False) -> list[str]:
        """The same for a user, in that user's home, with standard input passed on."""

    def quick_command(self) -> list[str]:
        """As `command`, for a program that calls Slurm's commands again and again."""
        return self.command

    def quick_entry(self, user: str) -> list[str]:
        """As `entry`, likewise."""
        return self.entry(user)

    @abstractmethod
    def place(self) -> dict[str, str]:
        """Where it is, for `status`: a word for the kind of place, and its name."""

    @abstractmethod
    def told(self) -> list[str]:
        """The lines its first process has printed."""

    @abstractmethod
    def is_running(self) -> bool:
        """Asks anew."""

    @abstractmethod
    def remove(self) -> None:
        """Ends it and throws away all its state."""

    def inside(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run(*self.command, *words)

    def ready(self) -> bool:
        return self.state == "running" and self.inside("test", "-e", READY).returncode == 0

    def put(self, file: Path, folder: str) -> str:
        """Copies a file of the host in, as root's and open to all; returns what went wrong."""
        script = (
            'mkdir -p "$1" && cat > "$1/.$2.new" && chmod 644 "$1/.$2.new" && chown root: "$1/.$2.new" '
            '&& mv "$1/.$2.new" "$1/$2"'
        )
        with file.open("rb") as content:
            done = subprocess.run(
                [*self.entry("root"), "sh", "-c", script, "sh", folder, file.name],
                stdin=content,
                capture_output=True,
                check=False,
            )
        return (done.stderr.decode(errors="replace").strip() or "unknown reason") if done.returncode else ""

    def facts(self) -> dict[str, object]:
        return {
            "release": self.release,
            "state": self.state,
            **self.place(),
            "run": self.run_folder,
            "etc": self.etc_folder,
            "command": self.quick_command(),
            "users": self._entries(),
        }

    def _entries(self) -> dict[str, list[str]]:
        """`quick_entry` of each user; empty where the caller may not enter, or nothing runs."""
        try:
            return {user: self.quick_entry(user) for user in USERS} if self.state == "running" else {}
        except Failure:
            return {}


def enter(first: int, folder: str, *variables: str) -> list[str]:
    """The words before a command that run it beside the process `first`, as root; what it may do stays the host's."""
    apart = ("--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd")
    # Nothing of the caller's environment: a site's SLURM_CONF would lead out of the cluster.
    clean = ("env", "-i", "-C", folder, PATH, "LC_ALL=C.UTF-8", *variables)
    return ["nsenter", "--target", str(first), *apart, *clean]


def become(user: str) -> list[str]:
    """The words before a command that make a user of root."""
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]


def home(user: str) -> str:
    return "/root" if user == "root" else f"/home/{user}"


def host_folders(name: str, shared: str | None) -> tuple[Path, Path]:
    """The host's side of /run/slurm-advisor and of /etc/slurm-advisor."""
    run_folder, etc_folder = Path(shared or STATE / name / "run").resolve(), STATE / name / "etc"
    for folder in (run_folder, etc_folder):
        folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0 and not shared:
        # Set-group-id: a socket of mode 0660 made here, by whomever, is open to slurmctld.
        os.chown(run_folder, -1, SLURM_ID)
        run_folder.chmod(0o2775)
    return run_folder, etc_folder
