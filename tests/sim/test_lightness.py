"""What must not be loaded for things that have nothing to do with simulating."""

import subprocess
import sys

import pytest

HEAVY = ("numpy", "numba", "scipy", "highspy", "torch")


@pytest.mark.parametrize("module", ["advisor.sim.embedded", "advisor.cli.simulate", "advisor.policy.gavel"])
def test_the_demo_and_the_help_load_no_numeric_library(module):
    code = f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == []


def test_numba_is_loaded_only_when_something_is_simulated():
    code = "import sys, advisor.sim.simulate, advisor.sim.picture; print('numba' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
