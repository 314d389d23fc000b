"""Starts both ends of the wire for a test, and ends them after it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hook_ends import LUA, Daemon, Slurmctld
from prepared_answers import AS_ASKED, Preparing

from advisor import resources


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    it = Daemon(tmp_path / "advisor.sock")
    it.start()
    yield it
    it.stop()


@pytest.fixture
def start_slurmctld(tmp_path: Path) -> Iterator[Callable[..., Slurmctld]]:
    assert shutil.which(LUA), f"{LUA} is needed: apt-get install lua5.1 lua-socket lua-cjson"
    started: list[Slurmctld] = []

    def start(*hidden_modules: str, **settings: Any) -> Slurmctld:
        it = Slurmctld(resources.folder("slurm"), *hidden_modules)
        started.append(it)
        # A generous time-out: a loaded machine must not turn an answer into a failure.
        defaults = {
            "socket": str(tmp_path / "advisor.sock"),
            "disable_file": str(tmp_path / "disable"),
            "timeout_ms": 5000,
        }
        it.configure(**{**defaults, **settings})
        return it

    yield start
    for it in started:
        it.end()


@pytest.fixture
def slurmctld(start_slurmctld: Callable[..., Slurmctld]) -> Slurmctld:
    return start_slurmctld()


@pytest.fixture
def preparing(daemon: Daemon) -> Preparing:
    return Preparing(daemon)


@pytest.fixture
def asked_once(preparing: Preparing, slurmctld: Slurmctld) -> Slurmctld:
    """A slurmctld that has asked for one job, which the daemon knows as kind 1."""
    assert slurmctld.submit().fields == AS_ASKED
    assert [request["kind"] for request in preparing.asked] == [1]
    return slurmctld
