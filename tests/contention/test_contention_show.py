"""`advisor contention show`: the network as text, JSON and a picture."""

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree

import pytest
from click.testing import CliRunner

from advisor.cli.contention import command

needs_perf = pytest.mark.skipif(shutil.which("perf") is None, reason="needs linux-perf")


@needs_perf
def test_an_admin_sees_resources_relations_and_counters():
    result = CliRunner().invoke(command, ["show", "--cpu", "icx"])
    assert result.exit_code == 0, result.output
    for part in (
        "memory_bandwidth:",
        "Relations",
        "DRAM_BW_Use = ",
        "Counters to measure",
        "UNC_M_CAS_COUNT.RD",
        "What must hold",
    ):
        assert part in result.output


@needs_perf
def test_the_picture_is_svg_with_every_box_and_edge(tmp_path):
    file = tmp_path / "network.svg"
    result = CliRunner().invoke(command, ["show", "--cpu", "skx", "--svg", str(file), "--json"])
    shown = json.loads(result.stdout)
    picture = ElementTree.parse(file).getroot()
    space = "{http://www.w3.org/2000/svg}"
    boxes = {group.find(f"{space}title").text for group in picture.iter(f"{space}g")}
    count = sum(map(len, shown["counters"].values())) + len(shown["relations"]) + len(shown["resources"])
    assert len(list(picture.iter(f"{space}g"))) == count
    assert len(list(picture.iter(f"{space}path"))) == len(shown["edges"])
    assert "CPU_CLK_UNHALTED.THREAD" in boxes
    assert shown["svg"] == str(file)


@needs_perf
@pytest.mark.parametrize("cpu", ["clx", "zen2"])
def test_no_line_of_the_picture_passes_behind_a_box_and_no_label_is_wider_than_its_box(tmp_path, cpu):
    file = tmp_path / "network.svg"
    assert CliRunner().invoke(command, ["show", "--cpu", cpu, "--svg", str(file)]).exit_code == 0
    space = "{http://www.w3.org/2000/svg}"
    picture = ElementTree.parse(file).getroot()
    boxes = []
    for group in picture.iter(f"{space}g"):
        box, label = group.find(f"{space}rect"), group.find(f"{space}text")
        boxes.append(tuple(float(box.get(key)) for key in ("x", "y", "width", "height")))
        assert 4.5 * len(label.text) < float(box.get("width"))
    straight = re.compile(r"([\d.]+),([\d.]+) H([\d.]+)")  # through a column, between its boxes
    passed = 0
    for path in picture.iter(f"{space}path"):
        for start, height, end in (map(float, found) for found in straight.findall(path.get("d"))):
            passed += 1
            for x, y, width, tall in boxes:
                assert end <= x or start >= x + width or not y < height < y + tall
    assert passed > 5


def test_without_perf_the_command_says_what_to_install():
    result = CliRunner().invoke(command, ["show", "--perf", "perf-that-is-not-there"])
    assert result.exit_code == 1
    assert "apt-get install linux-perf" in result.output


@needs_perf
def test_a_place_that_cannot_be_written_is_named(tmp_path):
    result = CliRunner().invoke(command, ["show", "--cpu", "zen3", "--svg", str(tmp_path / "no" / "x.svg")])
    assert result.exit_code == 1
    assert "cannot be written" in result.output


@needs_perf
def test_a_cpu_that_perf_does_not_know_shows_software_only():
    result = CliRunner().invoke(command, ["show", "--cpu", "GenuineIntel-6-FFFF-0"])
    assert result.exit_code == 0
    assert "none: perf has no metrics for this CPU" in result.output
