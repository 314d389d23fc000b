-- What node agents measured, compacted: for each job on each node, and for each node hour by hour (later day by day),
-- one row for each metric with how many samples it is of, their mean, and the sum of squares of their deviations (m2),
-- from which the variance follows: m2 / (n - 1). Rows are merged as samples arrive; no sample is kept by itself.

CREATE TABLE metrics (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE       -- cpu.user, memory, io.write, perf.instructions, …; docs/telemetry.md has the units
);

CREATE TABLE agent_nodes (
    id       INTEGER PRIMARY KEY,
    cluster  TEXT NOT NULL,
    node     TEXT NOT NULL,
    heard_at REAL NOT NULL,         -- by the daemon's clock
    UNIQUE (cluster, node)
);

-- Which samples of a run of an agent are in the summaries, as ranges of their numbers: a sample that is delivered again
-- is known by this. Kept as long as samples of that age are accepted.
CREATE TABLE received_samples (
    node     TEXT NOT NULL,         -- by name alone: an agent may learn its cluster's name between two deliveries
    run      TEXT NOT NULL,         -- boot id and begin of the agent
    first    INTEGER NOT NULL,
    last     INTEGER NOT NULL,
    heard_at REAL NOT NULL,
    PRIMARY KEY (node, run, first)
) WITHOUT ROWID;

-- What an agent could not measure, each once for a run of the agent.
CREATE TABLE agent_notes (
    node     INTEGER NOT NULL REFERENCES agent_nodes (id) ON DELETE CASCADE,
    subject  TEXT NOT NULL,         -- perf, perf.instructions, gpu, io, …
    what     TEXT NOT NULL,         -- not supported, not counted, missing, no permission, none, …
    text     TEXT NOT NULL,
    first_at REAL NOT NULL,
    last_at  REAL NOT NULL,
    PRIMARY KEY (node, subject, what)
) WITHOUT ROWID;

-- One run of a job on one node. A job id is used again when Slurm's counter wraps, hence the times.
CREATE TABLE job_nodes (
    id       INTEGER PRIMARY KEY,
    job_id   INTEGER NOT NULL,
    node     INTEGER NOT NULL REFERENCES agent_nodes (id) ON DELETE CASCADE,
    restarts INTEGER NOT NULL,
    first_at REAL NOT NULL,         -- of its samples, by the daemon's clock
    last_at  REAL NOT NULL,
    samples  INTEGER NOT NULL,
    seconds  REAL NOT NULL          -- that these samples cover
);
CREATE INDEX job_nodes_by_job ON job_nodes (job_id, node, restarts);
CREATE INDEX job_nodes_by_end ON job_nodes (last_at);

CREATE TABLE job_counters (
    job_node  INTEGER NOT NULL REFERENCES job_nodes (id) ON DELETE CASCADE,
    metric    INTEGER NOT NULL REFERENCES metrics (id),
    n         INTEGER NOT NULL,
    mean      REAL NOT NULL,
    m2        REAL NOT NULL,
    enabled_s REAL,                 -- of hardware and software events only
    running_s REAL,
    PRIMARY KEY (job_node, metric)
) WITHOUT ROWID;

CREATE TABLE node_counters (
    node   INTEGER NOT NULL REFERENCES agent_nodes (id) ON DELETE CASCADE,
    span   INTEGER NOT NULL,        -- seconds: 3600, or 86400
    start  INTEGER NOT NULL,        -- of the span
    metric INTEGER NOT NULL REFERENCES metrics (id),
    n      INTEGER NOT NULL,
    mean   REAL NOT NULL,
    m2     REAL NOT NULL,
    PRIMARY KEY (node, span, start, metric)
) WITHOUT ROWID;

-- What is left of jobs whose own summaries have gone: all runs of an app on a processor type together.
CREATE TABLE app_counters (
    cluster   TEXT NOT NULL,
    app       TEXT NOT NULL,
    processor TEXT NOT NULL,
    metric    INTEGER NOT NULL REFERENCES metrics (id),
    runs      INTEGER NOT NULL,     -- job × node
    n         INTEGER NOT NULL,
    mean      REAL NOT NULL,
    m2        REAL NOT NULL,
    enabled_s REAL,
    running_s REAL,
    PRIMARY KEY (cluster, app, processor, metric)
) WITHOUT ROWID;

CREATE VIEW job_summaries AS
SELECT a.cluster, j.job_id, j.restarts, a.node, m.name AS metric, c.n, c.mean,
       CASE WHEN c.n > 1 THEN c.m2 / (c.n - 1) END AS variance,
       c.enabled_s, c.running_s, j.first_at, j.last_at, j.seconds
FROM job_counters AS c
JOIN job_nodes AS j ON j.id = c.job_node
JOIN agent_nodes AS a ON a.id = j.node
JOIN metrics AS m ON m.id = c.metric;

CREATE VIEW node_summaries AS
SELECT a.cluster, a.node, c.span, c.start, m.name AS metric, c.n, c.mean,
       CASE WHEN c.n > 1 THEN c.m2 / (c.n - 1) END AS variance
FROM node_counters AS c
JOIN agent_nodes AS a ON a.id = c.node
JOIN metrics AS m ON m.id = c.metric;
