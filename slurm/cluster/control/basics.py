"""What both kinds of mini-cluster need: running commands, their logs, apt, the releases, names for what is built.

Nothing here knows of Docker or of namespaces.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

SOURCE = Path(__file__).resolve().parent.parent
STATE = Path(os.environ.get("ADVISOR_CLUSTER_STATE", "/var/tmp/slurm-advisor-cluster"))
LOAD_PACKAGES = "stress-ng linux-perf"


class Failure(Exception):
    """Why something cannot be done, in one line; `details` are the log lines that show it."""

    def __init__(self, text: str, code: int = 1, details: str = "") -> None:
        super().__init__(text)
        self.text, self.code, self.details = text, code, details


class Release(NamedTuple):
    name: str
    suite: str
    apt_options: str


def say(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr, flush=True)


def fail(text: str, code: int = 1, details: str = "") -> NoReturn:
    raise Failure(text, code, details)


def run(*command: str | Path, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command without showing it; the caller judges the result."""
    try:
        return subprocess.run(
            [str(c) for c in command],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer within {timeout:g} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def tail(log: Path, lines: int) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


def logged(
    step: str, log: Path, *command: str | Path, env: dict[str, str] | None = None, timeout: float | None = None
) -> None:
    """Runs one long step, its output in a log file; on failure shows the end of it."""
    say(f"{step} ...")
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("w") as out:
        try:
            code = subprocess.run(
                [str(c) for c in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
                env={**os.environ, **(env or {})},
                timeout=timeout,
            ).returncode
            why = f"exit code {code}"
        except subprocess.TimeoutExpired:
            code, why = 124, f"not done within {timeout:g} s"
        except OSError as error:
            code, why = 127, str(error)
    if code:
        fail(f"{step} failed ({why}); its output is in {log}", details=tail(log, 15))
    say(f"{step}: {time.monotonic() - began:.0f} s")


def releases() -> dict[str, Release]:
    found = {}
    for line in (SOURCE / "releases").read_text().splitlines():
        if line and not line.startswith("#"):
            name, suite, options = line.split(maxsplit=2)
            found[name] = Release(name, suite, "" if options == "-" else options)
    return found


def install(*packages: str) -> None:
    """Debian packages that are missing on this machine, by its own apt."""
    wanted = " ".join(packages)
    if os.geteuid() != 0:
        fail(f"{wanted} must be installed first: run this as root once, or apt-get install {wanted}")
    if not shutil.which("apt-get"):
        fail(f"{wanted} must be installed first, and there is no apt-get here to do it with")
    env = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1"}
    # A mirror that does not answer must not hold us up for apt's own many minutes.
    apt = ["apt-get", "-q", "-oAcquire::Retries=1", "-oAcquire::http::Timeout=15", "-oAcquire::https::Timeout=15"]
    try:
        logged("refreshing apt's lists", STATE / "log" / "apt-update.log", *apt, "update", env=env, timeout=180)
    except Failure as failure:
        # One broken source among many is common, and what is wanted may well come from another.
        say(f"{failure.text}; trying with the lists there are")
    logged(
        f"installing {wanted}",
        STATE / "log" / "apt-install.log",
        *apt,
        "install",
        "-y",
        "--no-install-recommends",
        *packages,
        env=env,
        timeout=900,
    )


def proxies() -> dict[str, str]:
    """The proxies of this machine's apt as variables of the environment, for tools that do not read apt's settings."""
    found = {}
    for kind in ("http", "https"):
        given = os.environ.get(f"{kind}_proxy", "")
        told = run("apt-config", "dump", "--format", "%v%n", f"Acquire::{kind}::Proxy").stdout
        proxy = given or told.partition("\n")[0].strip()
        if proxy not in ("", "DIRECT"):
            found[f"{kind}_proxy"] = proxy
    return found


def debootstrap(suite: str, root: Path, *prefix: str) -> None:
    """A minimal Debian of that suite in a folder, from the mirror of this machine's apt where that is Debian's."""
    if not shutil.which("debootstrap"):
        install("debootstrap", "debian-archive-keyring")
    mirror = []
    targets = run("apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Created-By: Packages")
    for line in targets.stdout.splitlines():
        if line.startswith("Debian|Debian|"):
            mirror = [line.split("|", 2)[2]]
            break
    # Without certificates the new apt could not go on using a mirror that speaks https.
    options = ["--include=ca-certificates"] if mirror and mirror[0].startswith("https:") else []
    logged(
        f"debootstrap {suite}",
        STATE / "log" / f"debootstrap-{suite}.log",
        *prefix,
        "debootstrap",
        "--variant=minbase",
        *options,
        suite,
        root,
        *mirror,
        env=proxies(),
    )


def digest(release: Release, *names: str) -> str:
    """What is built is named after what goes into it: a change of any input builds anew, nothing else does."""
    inputs = hashlib.sha256(repr(release).encode())
    for name in names:
        files = [SOURCE / name] if (SOURCE / name).is_file() else (SOURCE / name).rglob("*")
        for path in sorted(p for p in files if p.is_file()):
            inputs.update(f"\0{path.relative_to(SOURCE)}\0{path.stat().st_mode & 0o111}\0".encode() + path.read_bytes())
    return inputs.hexdigest()[:12]


def packages_digest(release: Release) -> str:
    return digest(release, "packages")


def cluster_digest(release: Release) -> str:
    return digest(release, "packages", "Dockerfile", "etc", "services", "record")


@contextlib.contextmanager
def alone(what: str) -> Iterator[None]:
    """One at a time of what has this name: whoever comes second waits and finds it done."""
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / f"{what}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another {what} to end ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
