"""Whatever the cluster and the submission: a candidate really holds the job, by counting nodes one by one."""

from hypothesis import HealthCheck, event, given
from hypothesis import settings as tuning
from hypothesis import strategies as st

from advisor.cluster.types import ClusterState, Gres, Node, Partition
from advisor.performance.queue import build_snapshot
from advisor.protocol import VERSION, PartitionLimits, SubmitRequest
from advisor.settings import PolicySettings
from tests.policy.site import NOW, advise, settings

TYPES = ("v100", "p100")
FEATURES = ("a", "b")
NAMES = ("one", "two", "three")
ENVIRONMENTS = (
    {},
    {"ADVISOR_DFG": "flexible: [partition, gpu_type]"},
    {"ADVISOR_DFG": "share: true"},
    {"ADVISOR_DFG": "{share: true, flexible: [partition, gpu_type]}"},
)


def maybe(strategy):
    return st.none() | strategy


def seldom(*values, usually=None):
    """Restrictions are the exception, or hardly any job would have a choice."""
    return st.sampled_from([usually] * 8 + list(values))


@st.composite
def nodes(draw):
    gpus = draw(st.sampled_from([0, 1, 2, 4]))
    kind = draw(st.sampled_from(TYPES))
    gres = (Gres("gpu", gpus, kind),) if gpus else ()
    if gpus and draw(seldom(True, usually=kind == "v100")):
        gres = (*gres, Gres("shard", gpus * draw(seldom(1, usually=4))))
    return {
        "states": (draw(seldom("DOWN", "DRAIN", usually="IDLE")),),
        "cpus": draw(st.sampled_from([4, 8])),
        "memory_mb": draw(st.sampled_from([1000, 4000])),
        "gres": gres,
        "features": tuple(draw(st.sets(st.sampled_from(FEATURES)))),
        "partitions": tuple(draw(st.sets(st.sampled_from(NAMES), min_size=1))),
    }


@st.composite
def partitions(draw, name):
    return Partition(
        name,
        (),
        up=draw(seldom(False, usually=True)),
        default=name == "one",
        max_time=draw(seldom(30, 60)),
        default_time=draw(seldom(10, 20)),
        min_nodes=draw(seldom(1, 2)),
        max_nodes=draw(seldom(1, 2)),
        max_cpus_per_node=draw(seldom(4)),
        max_mem_per_node=draw(seldom(2000)),
        allow_accounts=draw(seldom(("physics",))),
        deny_qos=draw(seldom(("low",), usually=())),
        exclusive=draw(seldom(True, usually=False)),
        priority_tier=draw(st.sampled_from([1, 2])),
    )


@st.composite
def clusters(draw):
    made = draw(st.lists(nodes(), min_size=3, max_size=8))
    return ClusterState(
        "any",
        (24, 11),
        NOW,
        tuple(Node(name=f"n{i}", **node) for i, node in enumerate(made)),
        tuple(draw(partitions(name)) for name in NAMES),
        (),
    )


@st.composite
def submissions(draw):
    count = draw(st.sampled_from([0, 1, 1, 2, 3]))
    kind = draw(st.sampled_from(["", "", "v100:"]))
    gpus = f"gres/gpu:{kind}{count}" if count else None
    per_job = draw(st.booleans())
    low = draw(seldom(1, 2, 2, 2))
    memory = draw(seldom("node", "cpu", "cpu"))
    listed = draw(seldom(("one", "two"), ("two",), usually=NAMES))
    return SubmitRequest(
        v=VERSION,
        user="ada",
        account=draw(seldom(None, "chemistry", usually="physics")),
        qos=draw(seldom(None, "low", usually="normal")),
        name="x",
        partition=draw(st.sampled_from([None, "one", "two", "one,two", "three,two,one"])),
        tres_per_job=gpus if per_job else None,
        tres_per_node=None if per_job else gpus,
        time_limit=draw(seldom(None, 30, 45, usually=5)),
        num_tasks=draw(seldom(1, 2, 3, 5, 8, 12)),
        cpus_per_task=draw(seldom(1, 3)),
        min_nodes=low,
        max_nodes=draw(st.sampled_from([None, low])),
        min_mem_per_node=draw(st.sampled_from([500, 3000])) if memory == "node" else None,
        min_mem_per_cpu=draw(st.sampled_from([100, 900])) if memory == "cpu" else None,
        features=draw(seldom("a", "a&b", "a|b", "[a|b]")),
        exc_nodes=draw(seldom("n0", "n0")),
        environment=draw(st.sampled_from(ENVIRONMENTS)),
        partitions=[PartitionLimits(name, default=name == "one") for name in sorted(listed)],
    )


def holds(state: ClusterState, name: str, kind: str | None, request: SubmitRequest, shards: int = 0) -> bool:
    """Whether the partition's nodes, were they empty, take the job: tried with 1, 2, … nodes, the roomiest first.

    With shards it asks for so many of them in place of GPUs.
    """
    partition = next(p for p in state.partitions if p.name == name)
    count = int((request.tres_per_node or request.tres_per_job or ":0").rsplit(":", 1)[1])
    per_task = request.cpus_per_task or 1
    low = request.min_nodes or 1
    tasks = max(request.num_tasks or 1, low)
    alternatives = {None: [set()], "a": [{"a"}], "a&b": [{"a", "b"}]}.get(request.features, [{"a"}, {"b"}])
    for wanted in alternatives if request.features == "[a|b]" else [None]:
        rooms = []
        for node in state.nodes:
            fits = any(alternative <= set(node.features) for alternative in ([wanted] if wanted else alternatives))
            if not (node.usable and name in node.partitions and fits) or node.name == request.exc_nodes:
                continue
            gpus = sum(g.count for g in node.gres if g.name == "gpu" and (kind is None or g.type == kind))
            if shards > sum(g.count for g in node.gres if g.name == "shard"):
                continue
            cpus = min(node.cpus, partition.max_cpus_per_node or node.cpus)
            memory = min(node.memory_mb, partition.max_mem_per_node or node.memory_mb)
            if request.tres_per_node and gpus < count:
                continue
            if request.tres_per_job and not gpus:
                continue
            if (request.min_mem_per_node or 0) > memory:
                continue
            if request.min_mem_per_cpu:
                cpus = min(cpus, memory // request.min_mem_per_cpu)
            if cpus // per_task:
                rooms.append((cpus // per_task, gpus))
        top = min(request.max_nodes or 99, partition.max_nodes or 99, len(rooms))
        for used in range(max(low, partition.min_nodes or 1), top + 1):
            most_tasks = sum(sorted((r[0] for r in rooms), reverse=True)[:used])
            most_gpus = sum(sorted((r[1] for r in rooms), reverse=True)[:used])
            if most_tasks >= tasks and (not request.tres_per_job or most_gpus >= count):
                return True
    return False


@tuning(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters(), submissions())
def test_a_candidate_holds_the_job_and_is_one_the_user_may_use(state, request):
    config = settings(policy=PolicySettings(min_gain=0, min_gain_s=0), levers=("place", "share"))
    decision = advise(request, build_snapshot(state, {}), config)
    flexible = "flexible" in request.environment.get("ADVISOR_DFG", "")
    event("eligible" if decision.eligible else "left alone")
    if not decision.eligible:
        assert decision.set == {}
        return
    assert decision.candidates[0].keep
    assert decision.candidates[0].set == {}
    limits = {p.name: p for p in state.partitions}
    asked = request.partition.split(",") if request.partition else ["one"]
    default = {limits[name].default_time or limits[name].max_time for name in asked}
    for candidate in decision.candidates[1:]:
        name = candidate.partition
        partition = limits[name]
        assert name in {listed.name for listed in request.partitions}
        assert partition.up
        assert set(candidate.set) <= {"partition", "tres_per_job", "tres_per_node"}
        assert candidate.set.get("partition", request.partition or "one") == name
        if request.time_limit is None:
            assert {partition.default_time or partition.max_time} == default
        else:
            assert partition.max_time is None or request.time_limit <= partition.max_time
        assert partition.allow_accounts is None or request.account in partition.allow_accounts
        assert request.qos not in partition.deny_qos
        assert partition.exclusive == limits[asked[0]].exclusive
        if not flexible and request.partition:
            assert name in asked
        if request.tres_per_node or request.tres_per_job:
            assert candidate.gpu_type in TYPES
            if not flexible and "v100" in (request.tres_per_node or request.tres_per_job):
                assert candidate.gpu_type == "v100"
        shards = int(candidate.set["tres_per_node"].removeprefix("gres/shard:")) if candidate.shared else 0
        event("shared" if shards else "whole")
        assert holds(state, name, candidate.gpu_type, request, shards), candidate
        if shards:
            assert "share" in request.environment["ADVISOR_DFG"]
            # Wherever the partition has shards, they are half of a GPU of that type.
            for node in state.nodes:
                held = {g.name: g for g in node.gres}
                if name in node.partitions and "shard" in held:
                    assert held["gpu"].type == candidate.gpu_type
                    assert held["shard"].count == 2 * shards * held["gpu"].count
    assert sum(decision.probabilities) == 1.0


@tuning(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    clusters(),
    st.fixed_dictionaries(
        {},
        optional={
            **{
                field: st.text(max_size=20) | st.sampled_from(["gres/gpu:1", "gpu:-1", "gres:gpu:999999999999", ","])
                for field in ("partition", "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket",
                              "mem_per_tres", "cpus_per_tres", "features", "exc_nodes", "array", "dependency", "extra",
                              "comment", "script_head", "name", "account", "qos")
            },
            **{
                field: st.integers(-(2**33), 2**33)
                for field in ("time_limit", "num_tasks", "min_cpus", "cpus_per_task", "ntasks_per_node", "min_nodes",
                              "max_nodes", "min_mem_per_node", "min_mem_per_cpu", "shared", "begin_time", "uid")
            },
        },
    ),
)  # fmt: skip
def test_no_submission_whatever_it_says_breaks_a_decision(state, fields):
    request = SubmitRequest(
        v=VERSION, **fields, partitions=[PartitionLimits(name, default=name == "one") for name in NAMES]
    )
    decision = advise(request, build_snapshot(state, {}))
    assert decision.action in ("keep", "rewrite")
