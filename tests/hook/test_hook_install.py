"""What an admin sees of `advisor hook install` and `advisor hook show`, in real folders and with a real Lua."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hook_ends import LUA

import advisor
from advisor import hook, resources

SITE = """\
-- Rules of this site.
-- local advisor = require "advisor"
--[[ advisor.submit(job_desc, part_list, uid) ]]
function slurm_job_submit(job, parts, uid)
  if job.account == nil then job.account = "guests" end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, parts, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root folder where both Lua packages are installed."""
    for name in ("socket/unix.so", "cjson.so"):
        file = tmp_path / "root/usr/lib/x86_64-linux-gnu/lua/5.1" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tmp_path / "root"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "slurm").mkdir()
    return tmp_path / "slurm"


def load(folder: Path) -> list[str]:
    """Loads job_submit.lua as slurmctld does and submits one job; what was logged, then what was returned."""
    text = """
      slurm = { SUCCESS = 0 }
      local function log(...) print((string.format(...))) end
      slurm.log_error, slurm.log_info, slurm.log_user = log, log, log
      dofile(arg[1])
      local job = setmetatable({}, { __index = function() end })
      print(slurm_job_submit(job, {}, 1000), slurm_job_modify(job, {}, {}, 1000))
    """
    done = subprocess.run(
        [LUA, "-", str(folder / "job_submit.lua")], input=text, capture_output=True, text=True, cwd=folder.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_folder_without_job_submit_lua_gets_one_that_works(folder: Path, root: Path) -> None:
    result = hook.install(folder)
    assert (result.module, result.script, result.add) == ("installed", "written", None)
    assert (folder / "advisor.lua").read_bytes() == (resources.folder("slurm") / "advisor.lua").read_bytes()
    assert load(folder) == ["0\t0"]
    assert {file.name for file in folder.iterdir()} == {"advisor.lua", "job_submit.lua"}  # no temporary file is left
    assert all(file.stat().st_mode & 0o777 == 0o644 for file in folder.iterdir())
    state = hook.show(folder, root)
    assert state.installed and state.module == "same as shipped" and state.version == advisor.__version__


def test_the_written_script_finds_the_module_where_slurmctld_sees_it(folder: Path) -> None:
    hook.install(folder, seen_as=Path("/etc/slurm-llnl"))
    assert 'package.path = "/etc/slurm-llnl/?.lua;" .. package.path' in (folder / "job_submit.lua").read_text()


def test_a_sites_own_script_is_never_touched_and_the_two_lines_fit_into_it(folder: Path) -> None:
    (folder / "job_submit.lua").write_text(SITE)
    os.utime(folder / "job_submit.lua", (1, 1))
    result = hook.install(folder)
    assert result.script == "needs two lines" and result.add is not None
    assert (folder / "job_submit.lua").read_text() == SITE
    assert (folder / "job_submit.lua").stat().st_mtime == 1  # slurmctld does not load it anew
    assert "advisor.submit(job, parts, uid)" in result.add.second
    assert result.add.first in "\n".join(result.text) and result.add.second in "\n".join(result.text)

    added = SITE.replace("  return slurm.SUCCESS\nend", f"  {result.add.second}\n  return slurm.SUCCESS\nend")
    (folder / "job_submit.lua").write_text(f"{result.add.first}\n{added}")
    assert load(folder) == ["0\t0"]
    again = hook.install(folder)
    assert (again.module, again.script, again.add) == ("unchanged", "calls the advisor", None)


@pytest.mark.parametrize("broken", [None, "", "syntax error (", "error('at load')", "return 7", "local half = {"])
def test_a_missing_or_broken_module_breaks_neither_slurmctld_nor_jobs(folder: Path, broken: str | None) -> None:
    hook.install(folder)
    if broken is None:
        (folder / "advisor.lua").unlink()
    else:
        (folder / "advisor.lua").write_text(broken)
    *logged, returned = load(folder)
    assert returned == "0\t0"
    assert logged[0].startswith("slurm-advisor is not loaded, jobs pass unchanged")


def test_an_older_module_is_replaced_and_the_admin_told_how_to_load_it(folder: Path, root: Path) -> None:
    hook.install(folder)
    (folder / "advisor.lua").write_text('local advisor = { VERSION = "0.0.1" }\nreturn advisor\n')
    state = hook.show(folder, root)
    assert state.module == "other version" and state.version == "0.0.1" and not state.well
    result = hook.install(folder)
    assert result.module == "updated"
    assert any(f"touch {folder}" in text for text in result.text)
    assert hook.show(folder, root).module == "same as shipped"


def test_a_module_changed_by_hand_is_recognised(folder: Path, root: Path) -> None:
    hook.install(folder)
    with (folder / "advisor.lua").open("a") as module:
        module.write("-- local change\n")
    assert hook.show(folder, root).module == "modified"


def test_an_empty_folder_is_shown_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    state = hook.show(folder, tmp_path)
    assert not state.installed and not state.well
    assert (state.module, state.script, state.version, state.plugin_enabled) == ("missing", "missing", None, None)
    assert state.lua_modules == {"lua-socket": False, "lua-cjson": False}
    assert "apt-get install lua-cjson" in "\n".join(state.text)


@pytest.mark.parametrize(
    ("conf", "enabled"),
    [
        ("JobSubmitPlugins=lua\n", True),
        ("jobsubmitplugins = all_partitions,lua # both\n", True),
        ("JobSubmitPlugins=job_submit/lua\n", True),
        ("JobSubmitPlugins=all_partitions\n", False),
        ("#JobSubmitPlugins=lua\n", False),
        ("ClusterName=c\nInclude hook.conf\n", True),
    ],
)
def test_show_tells_whether_slurm_conf_enables_the_hook(folder: Path, root: Path, conf: str, enabled: bool) -> None:
    hook.install(folder)
    (folder / "slurm.conf").write_text(conf)
    (folder / "hook.conf").write_text("JobSubmitPlugins=lua\n")
    state = hook.show(folder, root)
    assert state.plugin_enabled is enabled
    assert state.well is enabled


def test_show_keeps_the_plugins_that_a_site_already_has(folder: Path, root: Path) -> None:
    (folder / "slurm.conf").write_text("JobSubmitPlugins=all_partitions\n")
    assert any("JobSubmitPlugins=all_partitions,lua" in text for text in hook.show(folder, root).text)


def test_a_folder_that_is_not_there_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(hook.HookError, match="--dir"):
        hook.install(tmp_path / "absent")


def test_a_folder_that_lua_could_not_search_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    odd = tmp_path / 'a"; os.execute("x")--'
    odd.mkdir()
    with pytest.raises(hook.HookError, match="cannot search"):
        hook.install(odd)
    assert list(odd.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        ('local advisor = require "advisor"\nadvisor.submit(a, b, c)', True),
        ("local advisor = require('advisor')\nadvisor.submit(a, b, c)", True),
        ('local _, advisor = pcall(require, "advisor")\nif advisor then advisor.submit(a, b, c) end', True),
        ('local advisor = require "advisor"\n-- advisor.submit(a, b, c)', False),
        ('--[==[ local advisor = require "advisor"\nadvisor.submit(a, b, c) ]==]', False),
        ('print("-- not a comment") local advisor = require "advisor" advisor.submit(a, b, c)', True),
        ("advisor.submit(a, b, c)", False),
        ("", False),
        ("--[[ never closed require 'advisor' advisor.submit()", False),
    ],
)
def test_only_code_that_runs_counts_as_a_call(source: str, calls: bool) -> None:
    assert hook.calls_advisor(source) is calls


def test_lua_sources_pass_luacheck() -> None:
    checkout = Path(__file__).resolve().parents[2]
    command = ["luacheck", "--no-color", "slurm", "tests/hook"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
