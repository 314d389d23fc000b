"""What a made-up workload says of its jobs beyond their run times."""

import yaml

from advisor.dfg.document import read
from advisor.sim.traces.synthetic import APPS, Recipe, make, slowdowns


def test_apps_that_fill_a_gpu_slow_each_other_more_than_small_ones():
    table = slowdowns()
    assert len(table) == len(APPS) ** 2
    assert min(table.values()) >= 1.0
    assert table["cyclegan", "cyclegan"] > table["lstm", "a3c"]
    assert table["a3c", "a3c"] == 1.0
    assert table["resnet50", "resnet50"] > 1.4


def test_the_graph_of_a_made_up_job_is_an_annotation_that_the_advisor_reads():
    workload = make(Recipe(jobs=20, types={"v100": 4, "k80": 4}))
    for job in workload.jobs:
        annotation = read(yaml.safe_dump(job.dfg))
        assert [kernel.name for kernel in annotation.kernels] == ["compute", "read"]
        assert len(annotation.edges) == 1
