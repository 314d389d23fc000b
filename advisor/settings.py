"""Every setting of the advisor: its type, its default and a sentence, in one place (`config` reads them)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Mode = Literal["off", "shadow", "advise", "enforce"]
Lever = Literal["place", "order", "share", "requeue"]
Objective = Literal["avg_jct", "p99_jct", "makespan"]
Seconds = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


def _says(sentence: str) -> Meta:
    return Meta(description=sentence)


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group of settings."""


class Paths(Section, frozen=True):
    """Where things are."""

    socket: Annotated[str, _says("Unix socket on which the daemon answers the hook.")] = (
        "/run/slurm-advisor/advisor.sock"
    )
    database: Annotated[str, _says("SQLite log of decisions and outcomes.")] = "/var/lib/slurm-advisor/advisor.db"
    models: Annotated[
        str | None, _says("Folder of the model versions that `advisor retrain` writes; none: models, beside the log.")
    ] = None
    disable: Annotated[
        str, _says("While this file exists no pending job is touched; the hook has its own path to it.")
    ] = "/etc/slurm-advisor/disable"


class Server(Section, frozen=True):
    """Who may talk to the daemon."""

    allowed_users: Annotated[
        tuple[str, ...],
        _says("Users (names or numeric ids) who may connect; the daemon's own user always may."),
    ] = ("root", "slurm")
    socket_group: Annotated[
        str | None,
        _says("Group (name or numeric id) that owns the socket, so that slurmctld may connect."),
    ] = None
    http: Annotated[
        str | None,
        _says("Address (127.0.0.1:8095) of a status page and of /metrics for Prometheus; none: there is neither."),
    ] = None


class Slurm(Section, frozen=True):
    """How the daemon reaches Slurm."""

    command: Annotated[
        tuple[str, ...],
        _says("Words before every Slurm command, for a containerised controller: [docker, exec, ctl]."),
    ] = ()
    source: Annotated[
        Literal["auto", "commands", "pyslurm", "recorded"],
        _says("Where the cluster's state comes from; auto: pyslurm if it matches Slurm, else commands."),
    ] = "auto"
    recording: Annotated[str | None, _says("File to read with source: recorded.")] = None
    poll_s: Annotated[Seconds, _says("Seconds between two polls of Slurm; a submission never causes one.")] = 15.0
    timeout_s: Annotated[Seconds, _says("Seconds after which a Slurm command is given up.")] = 20.0
    stale_after_s: Annotated[
        Seconds,
        _says("Age of the last good poll beyond which the advice is always to keep the job as it is."),
    ] = 180.0


class Modes(Section, frozen=True):
    """What the advisor does with its advice; the most specific word wins: user, then account, then partition."""

    default: Annotated[
        Mode, _says("off: nothing; shadow: only log; advise: tell the user; enforce: rewrite the job.")
    ] = "shadow"
    partitions: Annotated[dict[str, Mode], _says("Mode for jobs submitted to a partition.")] = {}
    accounts: Annotated[dict[str, Mode], _says("Mode for an account's jobs.")] = {}
    users: Annotated[dict[str, Mode], _says("Mode for a user's jobs.")] = {}


class Exclude(Section, frozen=True):
    """What is never touched, whatever the mode."""

    partitions: Annotated[tuple[str, ...], _says("Partitions whose jobs stay and to which none is sent.")] = ()
    accounts: Annotated[tuple[str, ...], _says("Accounts whose jobs are left alone.")] = ()
    users: Annotated[tuple[str, ...], _says("Users whose jobs are left alone.")] = ()


class Experiment(Section, frozen=True):
    """How the effect is measured."""

    holdout: Annotated[Share, _says("Share of eligible jobs left untouched at random as the control group.")] = 0.05


class Explore(Section, frozen=True):
    """What may be risked in order to learn how long apps run where. Only jobs in mode enforce are sent to learn."""

    max_regret: Annotated[
        Share,
        _says("Largest expected loss, as a share of the expected completion time, of a job sent to learn; 0: none is."),
    ] = 0.0
    max_regret_s: Annotated[
        float, Meta(ge=0, description="The same in seconds; a job sent to learn is within both bounds.")
    ] = 1800.0


class PolicySettings(Section, frozen=True):
    """Which policy decides, and when a change is worth it."""

    name: Annotated[str, _says("Policy that scores the candidates.")] = "earliest-finish"
    min_gain: Annotated[
        Share,
        _says("Least expected gain, as a share of the expected completion time, for which a job is changed."),
    ] = 0.05
    model: Annotated[
        str | None,
        _says("Folder of the learned policy's model; none: that of the version in force, else the shipped one."),
    ] = None
    budget_ms: Annotated[
        float,
        Meta(gt=0, description="Milliseconds for a decision of the learned policy; if it takes longer, it rests."),
    ] = 3.0
    min_gain_s: Annotated[
        float, Meta(ge=0, description="Least expected gain in seconds for which a job is changed.")
    ] = 30.0


class Sharing(Section, frozen=True):
    """How GPUs are shared, where `levers` has share and nodes have gres/shard."""

    jobs_per_gpu: Annotated[
        int, Meta(ge=2, le=16, description="Into so many parts of equal size a GPU is divided.")
    ] = 2


class Rounds(Section, frozen=True):
    """How pending jobs are looked at again: what `levers` allows, in mode enforce; in the others it is only logged."""

    every_s: Annotated[Seconds, _says("Seconds between two looks at the pending jobs.")] = 30.0
    min_gain: Annotated[
        Share,
        _says("Least expected gain, as a share of the expected completion time, for which a pending job is moved."),
    ] = 0.1
    min_gain_s: Annotated[
        float, Meta(ge=0, description="Least expected gain in seconds for which a pending job is moved.")
    ] = 60.0
    most_moves: Annotated[int, Meta(gt=0, description="Most jobs that are moved in one round.")] = 20
    rest_s: Annotated[
        float, Meta(ge=0, description="Seconds for which a job that was moved, or could not be, is not moved again.")
    ] = 300.0
    most_jobs: Annotated[
        int, Meta(gt=0, description="Pending jobs that are looked at, from the head of the queue.")
    ] = 500
    objective: Annotated[
        Objective, _says("What several pending jobs are planned for: their mean or 99th percentile, or the last end.")
    ] = "avg_jct"
    max_loss_s: Annotated[
        float,
        Meta(ge=0, description="So much later a job may end, as far as is expected, when it moves for others' sake."),
    ] = 0.0
    most_nice: Annotated[
        int, Meta(ge=0, description="Most points of priority that the lever order gives to a job, or takes from it.")
    ] = 1000
    requeue_gain: Annotated[
        Share, _says("Least expected gain, as a share of its remaining time, for which a running job is requeued.")
    ] = 0.3
    requeue_least_s: Annotated[float, Meta(ge=0, description="The same in seconds; both must be reached.")] = 600.0
    restart_s: Annotated[
        float,
        Meta(ge=0, description="What a requeued job is taken to lose besides its work; Slurm alone waits two minutes."),
    ] = 180.0
    longest_wait_s: Annotated[
        Seconds, _says("A job that has waited so long goes first in the plan, and order takes nothing from it.")
    ] = 48 * 3600.0


class Log(Section, frozen=True):
    """The decision log."""

    buffer: Annotated[
        int,
        Meta(
            gt=0,
            description="Decisions held while the database cannot be written; more are counted as dropped.",
        ),
    ] = 100_000
    collect_s: Annotated[Seconds, _says("Seconds between two collections of outcomes from sacct.")] = 60.0
    since_days: Annotated[
        float, Meta(gt=0, description="How many days of finished jobs the first collection reads.")
    ] = 30.0


class Telemetry(Section, frozen=True):
    """What the daemon takes from the agents on compute nodes, and how long it is kept."""

    listen: Annotated[
        str | None, _says("Address (host:port) on which the daemon takes the agents' batches; none: it takes none.")
    ] = None
    allowed_users: Annotated[
        tuple[str, ...], _says("Users (names or numeric ids) whose munge credential an agent may send.")
    ] = ("root", "slurm")
    munge_socket: Annotated[str | None, _says("Socket of munged, where it is not the usual one.")] = None
    unmunge: Annotated[
        tuple[str, ...],
        _says("Command that checks credentials, where munged is out of reach: [docker, exec, -i, ctl, unmunge]."),
    ] = ()
    max_batch_mb: Annotated[
        float, Meta(gt=0, le=1000, description="Largest batch that is taken, in MB as it is sent.")
    ] = 4.0
    accept_days: Annotated[
        float,
        Meta(gt=0, description="Samples older than this are passed over; so long, one that comes twice is known."),
    ] = 7.0
    keep_job_days: Annotated[
        float, Meta(gt=0, description="Days after which a job's summaries are folded into those of its app.")
    ] = 90.0
    keep_hour_days: Annotated[
        float, Meta(gt=0, description="Days after which a node's hourly summaries are folded into daily ones.")
    ] = 30.0
    keep_day_days: Annotated[
        float, Meta(gt=0, description="Days after which a node's daily summaries are deleted.")
    ] = 730.0


class Agent(Section, frozen=True):
    """The agent on a compute node (`advisor agent`)."""

    daemon: Annotated[
        str | None, _says("Where the daemon takes batches (its telemetry.listen, as this node reaches it): host:port.")
    ] = None
    node: Annotated[str | None, _says("This node's name in Slurm, where it is not the host's short name.")] = None
    period_s: Annotated[Seconds, _says("Seconds between two samples of the node.")] = 10.0
    deliver_s: Annotated[Seconds, _says("Seconds between two deliveries to the daemon.")] = 60.0
    spool: Annotated[str, _says("Folder in which samples wait for the daemon.")] = "/var/lib/slurm-advisor-agent"
    spool_mb: Annotated[
        int, Meta(gt=0, description="How many MB may wait; beyond that the oldest samples are dropped.")
    ] = 64
    perf: Annotated[str, _says("Program that counts events; empty: none are counted.")] = "perf"
    events: Annotated[
        tuple[str, ...],
        _says("Groups of perf events, each a comma-separated list counted at once; none: what suits the processor."),
    ] = ()


class Capacities(Section, frozen=True):
    """What the shared resources of one node can do; what is left out is that of a middling two-socket server."""

    memory_gbs: Annotated[float, Meta(gt=0, description="GB/s to and from memory, all sockets together.")] = 200.0
    llc_gbs: Annotated[float, Meta(gt=0, description="GB/s between the cores and the last-level cache.")] = 600.0
    interconnect_gbs: Annotated[float, Meta(gt=0, description="GB/s between the sockets.")] = 60.0
    io_gbs: Annotated[float, Meta(gt=0, description="GB/s of PCIe devices.")] = 60.0
    disk_gbs: Annotated[float, Meta(gt=0, description="GB/s of the node's disks.")] = 2.0


class Contention(Section, frozen=True):
    """How jobs on one node slow each other down."""

    slowdown: Annotated[
        bool, _says("Whether the slowdown expected of jobs that run on the same nodes counts in a decision.")
    ] = True
    capacities: Annotated[
        dict[str, Capacities],
        _says("What nodes can do, by a node feature (icelake: {memory_gbs: 400}), or for all others by `default`."),
    ] = {}
    cpus: Annotated[
        dict[str, str],
        _says("Node feature → CPU (skx, icx, zen3, or perf's id) whose vendor events agent.events counts there."),
    ] = {}


class Gate(Section, frozen=True):
    """What a new model version must show before it decides anything."""

    tolerance: Annotated[
        Share,
        _says("By how much, as a share of the mean turnaround, a new version may be worse at the end of its interval."),
    ] = 0.02
    least_jobs: Annotated[
        int,
        Meta(gt=0, description="Effective number of logged jobs below which there is not enough evidence."),
    ] = 200
    without_overlap: Annotated[
        Literal["predictions", "refuse"],
        _says(
            "Where the log never tried what the version prefers: go by its predictions of held-out jobs and by the "
            "simulation, or refuse."
        ),
    ] = "predictions"
    latency_ms: Annotated[Seconds, _says("Longest p99 of a decision with the new version, in milliseconds.")] = 5.0


class Drift(Section, frozen=True):
    """When the models no longer tell what happens."""

    jobs_between_false_alarms: Annotated[
        float,
        Meta(gt=0, description="So many ended jobs, of an app or of all, lie between two false alarms on average."),
    ] = 20_000.0


class Processor(Section, frozen=True):
    """What a kind of processor can do, for jobs with no history."""

    tflops: Annotated[float, Meta(gt=0, description="Peak single-precision TFLOP/s of one GPU, or of one CPU core.")]
    memory_gbs: Annotated[float, Meta(gt=0, description="Peak memory bandwidth in GB/s.")]
    memory_gb: Annotated[float, Meta(ge=0, description="Memory of one GPU in GB; 0 where it is the node's.")] = 0.0


class Settings(Section, frozen=True):
    """All settings."""

    paths: Paths = Paths()
    server: Server = Server()
    slurm: Slurm = Slurm()
    modes: Modes = Modes()
    exclude: Exclude = Exclude()
    experiment: Experiment = Experiment()
    explore: Explore = Explore()
    policy: PolicySettings = PolicySettings()
    levers: Annotated[
        tuple[Lever, ...],
        _says(
            "What may be done with jobs after their submission; place: move pending jobs; order: exchange their turns "
            "(nice); requeue: also restart running jobs that said `requeue: true` elsewhere. [] turns all of it off. "
            "share, at submission: give jobs that said `share: true` shards of a GPU in place of a whole one."
        ),
    ] = ("place",)
    rounds: Rounds = Rounds()
    sharing: Sharing = Sharing()
    log: Log = Log()
    telemetry: Telemetry = Telemetry()
    agent: Agent = Agent()
    contention: Contention = Contention()
    gate: Gate = Gate()
    drift: Drift = Drift()
    processors: Annotated[
        dict[str, Processor],
        _says("GPU types (or cpu) of this site that differ from the shipped table or are missing in it."),
    ] = {}
