"""In a dry run the daemon itself says which partitions a user may use; what it cannot know is not allowed."""

import grp
import os
import pwd

import msgspec
import pytest

from advisor.cluster.types import Partition
from advisor.performance.queue import build_snapshot
from advisor.server.rights import part_list
from tests.server.daemons import cluster


def snapshot(**groups):
    state = cluster()
    extra = tuple(Partition(name=name, nodes=("cpu0",), allow_groups=allowed) for name, allowed in groups.items())
    return build_snapshot(msgspec.structs.replace(state, partitions=(*state.partitions, *extra)), {})


def names(listed):
    return {limits.name for limits in listed}


OPEN = {"old", "new", "cpu"}


@pytest.fixture
def ordinary():
    """Some user of this host other than root, and the name of that user's group."""
    entry = next((entry for entry in pwd.getpwall() if entry.pw_uid != 0), None)
    if entry is None:
        pytest.skip("this host has no user but root")
    return entry, grp.getgrgid(entry.pw_gid).gr_name


def test_a_partition_of_a_group_is_shown_to_its_members_only(ordinary):
    entry, group = ordinary
    other = next(g.gr_name for g in grp.getgrall() if g.gr_gid not in os.getgrouplist(entry.pw_name, entry.pw_gid))
    shown = part_list(snapshot(ours=(other, group), theirs=(other,)), entry.pw_name, entry.pw_uid)
    assert names(shown) == OPEN | {"ours"}


def test_groups_that_this_host_does_not_know_admit_nobody(ordinary):
    entry, _ = ordinary
    assert names(part_list(snapshot(far=("no-such-group",)), entry.pw_name, entry.pw_uid)) == OPEN


def test_a_user_that_this_host_does_not_know_sees_what_is_open_to_all():
    assert names(part_list(snapshot(staff=("root",)), "no-such-user", 64999)) == OPEN


def test_root_sees_everything_as_in_slurm():
    assert names(part_list(snapshot(far=("no-such-group",)), "root", 0)) == OPEN | {"far"}


def test_limits_are_passed_on_as_the_hook_would_spell_them():
    state = cluster()
    limited = Partition(
        name="limited", nodes=("cpu0",), max_time=60, allow_accounts=("a", "b"), deny_qos=("low",), priority_tier=7
    )
    shown = part_list(build_snapshot(msgspec.structs.replace(state, partitions=(limited,)), {}), "root", 0)
    assert (shown[0].max_time, shown[0].allow_accounts, shown[0].deny_qos) == (60, "a,b", "low")
    assert (shown[0].priority_tier, shown[0].deny_accounts, shown[0].allow_qos) == (7, None, None)
