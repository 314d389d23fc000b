"""The same mini-cluster without Docker: Slurm from Debian's packages in a folder of this host, apart from its rest.

Its processes see that folder as their root, a host named ctl and a network of loopback alone, so that nothing of the
host's own Slurm, users, database or ports is touched. Its mounts and processes end with its first process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
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

ROOTS = STATE / "roots"
FIRST = Path(__file__).resolve().parent / "first.py"
# --kill-child: whoever ends unshare ends the cluster as well, instead of leaving it behind without a parent.
APART = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child")


def check() -> None:
    """Fails, with what is missing, where this machine cannot keep a cluster without Docker."""
    if os.geteuid() != 0:
        fail("Slurm from Debian's packages on this host needs root (for debootstrap, chroot and namespaces)")
    missing = [tool for tool in ("unshare", "nsenter", "mount", "chroot") if not shutil.which(tool)]
    if missing:
        fail(f"{', '.join(missing)} not found: install util-linux, mount and coreutils, or add /usr/sbin to PATH")
    # The host's own root will do for a try: all that is mounted on it is seen in there alone.
    tried = run(*_first_process(Path("/"), "true"))
    if tried.returncode:
        why = tried.stderr.strip().removeprefix("cluster: error: ").replace("\n", "; ")
        fail(
            f"this machine does not let root do what a cluster without Docker needs ({why}): in a container, it takes "
            "the capabilities SYS_ADMIN and NET_ADMIN and a profile that allows mounts"
        )


def _first_process(root: Path, *command: str, options: Sequence[str] = (), own_network: bool = True) -> list[str]:
    """The words that run a command inside a root, as the first process of namespaces of its own."""
    net, lo = (["--net"], ["--own-network"]) if own_network else ([], [])
    return [*APART, *net, sys.executable, str(FIRST), *lo, *options, str(root), *command]


@alone("build")
def root_folder(release: Release, load: bool, fresh: bool = False) -> Path:
    """A root that clusters are copied from: a release's packages (the long part), and on top of them our files."""
    kind = f"{release.name}-{'load-' if load else ''}"
    packages = ROOTS / f"packages-{kind}{packages_digest(release)}"
    root = ROOTS / f"cluster-{kind}{cluster_digest(release)}"
    ROOTS.mkdir(parents=True, exist_ok=True)
    if fresh or not packages.exists():
        new = _empty(ROOTS / f"new-packages-{kind}")
        # Apart, so that an interrupted debootstrap leaves no mount behind.
        debootstrap(release.suite, new, "unshare", "--mount")
        (new / "etc/hosts").write_text("127.0.0.1 localhost ctl\n")
        _copy(SOURCE / "packages/install", new / "usr/local/sbin/install-packages")
        log = STATE / "log" / f"packages-{release.name}.log"
        env = {**proxies(), "APT_OPTIONS": release.apt_options, "LOAD_PACKAGES": LOAD_PACKAGES if load else ""}
        step = f"installing Slurm {release.name} into {packages}"
        logged(step, log, *_first_process(new, "install-packages", own_network=False), env=env)
        _settle(new, packages, f"packages-{kind}")
    if fresh or not root.exists():
        new = _empty(ROOTS / f"new-cluster-{kind}")
        log = STATE / "log" / f"build-{release.name}.log"
        _clone(packages, new)
        for name in ("services", "record"):
            _copy(SOURCE / name, new / "usr/local/sbin" / name)
        for file in (SOURCE / "etc").iterdir():
            _copy(file, new / "etc/slurm" / file.name)
        logged(f"preparing {root}", log, *_first_process(new, "services", "prepare"))
        _settle(new, root, f"cluster-{kind}")
    return root


def _empty(folder: Path) -> Path:
    _discard(folder)
    folder.mkdir()
    folder.chmod(0o755)
    return folder


def _copy(source: Path, target: Path) -> None:
    """A file of ours as root's own, whoever owns the checkout and whatever its umask."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def _clone(source: Path, target: Path) -> None:
    copied = run("cp", "-a", "--reflink=auto", f"{source}/.", target)
    if copied.returncode:
        fail(f"{source} could not be copied to {target}: {copied.stderr.strip()}")


def _settle(new: Path, final: Path, kind: str) -> None:
    """Puts what was made under its name, in place of those of its kind. Clusters are copies: none uses them."""
    for other in ROOTS.glob(f"{kind}[0-9a-f]*"):
        if len(other.name) == len(final.name):
            _discard(other)
    new.rename(final)


def _discard(folder: Path) -> None:
    """Removes a root, unless something is mounted below it: that would be removed with it."""
    if not folder.exists():
        return
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    below = [mount for mount in mounts if mount.startswith(f"{folder}/")]
    if below:
        fail(f"{', '.join(below)} is mounted below {folder}, which is therefore not removed: umount it first")
    shutil.rmtree(folder)


def _born(pid: int) -> str:
    """When a process began, in the kernel's ticks; with its number it names a process for good."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


class HostCluster(Cluster):
    """A mini-cluster in a folder of this host."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        told = json.loads((folder / "host.json").read_text())
        self.release, self.run_folder, self.etc_folder = told["release"], told["run"], str(folder / "etc")
        self.state = "running" if self.is_running() else "exited"

    @property
    def _first(self) -> int | None:
        """Its first process, if it is still that one."""
        try:
            pid, born = (self.folder / "first").read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if _born(int(pid)) == born else None

    @property
    def command(self) -> list[str]:
        return enter(self._first or 0, "/", "HOME=/root")

    def entry(self, user: str, *, terminal: bool = False) -> list[str]:
        if os.geteuid() != 0:
            fail(f"cluster '{self.name}' is kept without Docker: only root can enter it")
        if self._first is None:
            fail(f"cluster '{self.name}' is not running; see scripts/cluster logs --name {self.name}")
        folder = home(user) if (self.folder / "root" / home(user).lstrip("/")).is_dir() else "/"
        variables = [f"HOME={folder}", f"USER={user}"]
        if terminal:
            variables.append(f"TERM={os.environ.get('TERM', 'dumb')}")
        return [*enter(self._first, folder, *variables), *become(user)]

    def place(self) -> dict[str, str]:
        return {"root": str(self.folder / "root")}

    def told(self) -> list[str]:
        log = self.folder / "services.log"
        return log.read_text(errors="replace").splitlines() if log.exists() else []

    def is_running(self) -> bool:
        return self._first is not None

    def remove(self) -> None:
        pid = self._first
        if os.geteuid() != 0:
            fail(f"cluster '{self.name}' is kept without Docker: only root can remove it")
        if pid is not None:
            # The kernel ends every process of a process namespace with its first one.
            os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + 30
            while self._first is not None:
                if time.monotonic() > deadline:
                    fail(f"cluster '{self.name}' (first process {pid}) does not end")
                time.sleep(0.05)
        _discard(self.folder)


def clusters() -> Iterator[HostCluster]:
    """Every cluster kept in a folder, running or not."""
    for told in STATE.glob("*/host.json"):
        yield HostCluster(told.parent)


def start(name: str, release: Release, shared: str | None, load: bool, mounts: Sequence[Path] = ()) -> HostCluster:
    """A new folder of that name, its services starting."""
    source = root_folder(release, load)
    folder = STATE / name
    run_folder, etc_folder = host_folders(name, shared)
    (folder / "host.json").write_text(json.dumps({"release": release.name, "run": str(run_folder)}))
    root = folder / "root"
    began = time.monotonic()
    _clone(source, _empty(root))
    say(f"copied {source.name}: {time.monotonic() - began:.1f} s")
    binds = [f"{run_folder}:/run/slurm-advisor", f"{etc_folder}:/etc/slurm-advisor"]
    options = ["--first", str(folder / "first"), *(word for bind in binds for word in ("--bind", bind))]
    options += [word for mount in mounts for word in ("--look-at", str(mount))]
    command = _first_process(root, "services", "run", options=options)
    with (folder / "services.log").open("w") as out:
        begun = subprocess.Popen(
            command, cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    while not (folder / "first").exists() and begun.poll() is None:
        time.sleep(0.02)
    return HostCluster(folder)
