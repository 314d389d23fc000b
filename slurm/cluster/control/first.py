"""The first process of a mini-cluster without Docker: arranges its root and namespaces, then becomes its services.

Started by `host.py` through unshare, in namespaces that are already its own, so that all that is mounted here ends with
it. Runs as a script, without the rest of the package.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import socket
import stat
import struct
import subprocess
import sys
from pathlib import Path

DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
# Of the caller's environment, for the installation of packages; the rest stays outside.
KEPT = ("http_proxy", "https_proxy", "APT_OPTIONS", "LOAD_PACKAGES")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}


def tell_where(file: Path) -> None:
    """Its number as the host sees it (this /proc is still the host's) and when it began: how others find it."""
    pid = Path("/proc/self").readlink()
    born = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    new = file.with_suffix(".new")
    new.write_text(f"{pid} {born}\n")
    new.rename(file)


def mount(*words: str) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip() or f"mount {' '.join(words)} failed")


def arrange_devices(folder: Path) -> None:
    # A file system of its own: the root's may be mounted nodev.
    mount("-t", "tmpfs", "-o", "mode=755,size=1m", "tmpfs", str(folder))
    for name, (major, minor) in DEVICES.items():
        os.mknod(folder / name, stat.S_IFCHR, os.makedev(major, minor))
        (folder / name).chmod(0o666)
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    for name in ("pts", "shm"):
        (folder / name).mkdir()
    mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620,gid=5", "devpts", str(folder / "pts"))
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(folder / "shm"))


def raise_loopback() -> None:
    """`ip link set lo up; ip addr add 127.0.0.2 dev lo`, for hosts without iproute2.

    The second address, because the C library takes a host that has only 127.0.0.1 for one without a network.
    """
    get_flags, set_flags, set_address, up = 0x8913, 0x8914, 0x8916, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked, get_flags, struct.pack("16sh14x", b"lo", 0))
        flags = struct.unpack("16sh14x", answer)[1]
        fcntl.ioctl(asked, set_flags, struct.pack("16sh14x", b"lo", flags | up))
        address = struct.pack("16sHH4s8x", b"lo:1", socket.AF_INET, 0, socket.inet_aton("127.0.0.2"))
        fcntl.ioctl(asked, set_address, address)


def arrange(args: argparse.Namespace) -> None:
    socket.sethostname("ctl")
    if args.own_network:
        raise_loopback()
    mount("-t", "proc", "proc", str(args.root / "proc"))
    mount("-t", "sysfs", "-o", "ro", "sysfs", str(args.root / "sys"))
    arrange_devices(args.root / "dev")
    for bind in args.bind:
        outside, _, inside = bind.rpartition(":")
        target = args.root / inside.lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        mount("--bind", outside, str(target))
    for folder in args.look_at:
        target = args.root / folder.lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        mount("--bind", folder, str(target))
        mount("-o", "remount,bind,ro", str(target))
    os.chroot(args.root)
    os.chdir("/")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=Path, help="file to write the process's number to")
    parser.add_argument("--own-network", action="store_true", help="not the host's: set up its loopback")
    parser.add_argument("--bind", action="append", default=[], metavar="OUTSIDE:INSIDE")
    parser.add_argument("--look-at", action="append", default=[], metavar="FOLDER", help="read-only, at the same path")
    parser.add_argument("root", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if args.first:
        tell_where(args.first)
    os.umask(0o022)
    try:
        arrange(args)
    except OSError as error:
        sys.exit(f"cluster: error: the cluster's namespaces cannot be arranged: {error}")
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    os.execvpe(args.command[0], args.command, {**kept, "PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"})


if __name__ == "__main__":
    main()
