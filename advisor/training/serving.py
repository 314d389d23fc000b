"""What the daemon takes from the version in force: the policy that decides, its run times and its waits.

A version that cannot be used is refused with a reason and what served before serves on; nothing here imports torch
unless the policy that the settings name needs it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from advisor.performance import processors, wait_model
from advisor.performance import told as told_prior
from advisor.policy.guarded import Guarded, learned
from advisor.policy.interface import Policy
from advisor.policy.registry import make_policy
from advisor.settings import Settings
from advisor.training.versions import Version, VersionError, Versions

if TYPE_CHECKING:
    from advisor.performance.model.model import RunTimeModel
    from advisor.performance.wait_model import WaitModel

log = logging.getLogger(__name__)

RUN_TIMES, WAITS, CONTENTION, POLICY = "run_times.msgpack", "waits.json", "contention.json", "policy.safetensors"
TOLD = "told.json"


def policy_in_force(settings: Settings) -> tuple[Policy, str | None]:
    """The policy that the settings name, told apart by the version it goes by; and why that version is refused.

    Raises `ConfigError` where there is no such policy.
    """
    policy = make_policy(settings)
    try:
        version = Versions.of(settings).current()
    except VersionError as error:
        return policy, str(error)
    if version is not None:
        weights = version.file(POLICY)
        if isinstance(policy, Guarded) and weights is not None and settings.policy.model is None:
            policy = learned(settings, weights)
        policy.version = f"{policy.version}/{version.name}"
    return policy, policy.refused or None if isinstance(policy, Guarded) else None


class InForce:
    """Follows the pointer: gives the models of a version when it comes into force, once."""

    def __init__(self) -> None:
        self.version: Version | None = None
        self._stamp: tuple[str, int, int] | None = None
        self._refused: str | None = None

    def changed(self, settings: Settings) -> bool:
        """Looks at the pointer; whether another version (or none) is in force since the last look."""
        versions = Versions.of(settings)
        stamp = (str(versions.models), *versions.stamp())
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            found = versions.current()
            if found is not None:
                run_times(found, settings)
                waits(found)
                told(found)
        except VersionError as error:
            self._refuse(str(error))
            return False
        self._refused = None
        before, self.version = self.version, found
        return (before.name if before else None) != (found.name if found else None)

    def _refuse(self, why: str) -> None:
        if why != self._refused:
            serving = f"version {self.version.name} serves on" if self.version else "the daemon learns from the log"
            log.error("a model version is refused, %s: %s", serving, why)
        self._refused = why


def run_times(version: Version, settings: Settings) -> RunTimeModel | None:
    """The version's run-time model; None where it has none. Raises `VersionError`."""
    path = version.file(RUN_TIMES)
    if path is None:
        return None
    from advisor.performance.model.files import ModelError, decode

    try:
        return decode(path.read_bytes(), processors.load(settings.processors), str(path))
    except (ModelError, OSError) as error:
        raise VersionError(str(error)) from error


def told(version: Version) -> told_prior.Told | None:
    """How far off annotations are by the version; None where it has nothing of it. Raises `VersionError`."""
    path = version.file(TOLD)
    if path is None:
        return None
    try:
        return told_prior.decode(path.read_bytes(), str(path))
    except (told_prior.ToldError, OSError) as error:
        raise VersionError(f"{error}; retrain it, or roll back") from error


def waits(version: Version) -> WaitModel | None:
    """The version's wait model; None where it has none. Raises `VersionError`."""
    path = version.file(WAITS)
    if path is None:
        return None
    try:
        return wait_model.decode(path.read_bytes())
    except (msgspec.DecodeError, OSError) as error:
        raise VersionError(f"{path} cannot be used ({error}); retrain it, or roll back") from error
