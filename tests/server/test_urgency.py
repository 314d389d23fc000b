"""The daemon asks the kernel for short time slices without changing anything an admin has set."""

import os
import subprocess
import sys

import pytest

ASK = "import os; os.nice({nice}); from advisor.server.urgency import *; asked = ask_for_short_slices(); "


@pytest.mark.parametrize("nice", [0, 7])
def test_the_nice_value_stays_as_the_admin_set_it(nice):
    script = ASK.format(nice=nice) + "print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(os.getpriority(os.PRIO_PROCESS, 0) + nice), str(os.SCHED_OTHER)]


def test_another_scheduling_policy_is_left_alone():
    script = "import os; os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)); " + ASK.format(nice=0)
    script += "print(asked, os.sched_getscheduler(0) == os.SCHED_BATCH)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["False", "True"]
