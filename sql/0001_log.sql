-- The log: what was decided for each submission, which job that became, and how every job really ended.
-- Times are Unix seconds. JSON columns hold text that the json_* functions of SQLite read.

CREATE TABLE decisions (
    token            TEXT PRIMARY KEY,
    decided_at       REAL NOT NULL,
    cluster          TEXT NOT NULL,
    uid              INTEGER,
    user             TEXT,
    account          TEXT,
    qos              TEXT,
    name             TEXT,                       -- the job's name
    app              TEXT NOT NULL,              -- what its run times are learnt under
    partition        TEXT,                       -- as the user asked; NULL: the default one
    request          TEXT NOT NULL,              -- JSON: the submission as the hook told it, without the script
    mode             TEXT NOT NULL,              -- shadow, advise, enforce
    action           TEXT NOT NULL,              -- keep, rewrite
    eligible         INTEGER NOT NULL,           -- whether there was anything to decide
    applied          INTEGER NOT NULL,           -- whether the job was really changed
    holdout          INTEGER NOT NULL,           -- left untouched as the control group
    candidates       TEXT NOT NULL DEFAULT '[]', -- JSON list
    predictions      TEXT NOT NULL DEFAULT '[]', -- JSON list, one for each candidate
    features         TEXT NOT NULL DEFAULT '{}', -- JSON: what the policy saw
    chosen           INTEGER,                    -- index into candidates
    preferred        INTEGER,                    -- index of the one the policy likes best
    probability      REAL,                       -- of choosing the chosen one
    probabilities    TEXT NOT NULL DEFAULT '[]', -- JSON list, of choosing each
    policy           TEXT,
    policy_version   TEXT,
    why              TEXT NOT NULL,
    message          TEXT,                       -- what the user was told
    set_fields       TEXT NOT NULL DEFAULT '{}', -- JSON: job_desc fields of the chosen candidate
    annotation       TEXT,                       -- JSON
    annotation_error TEXT,
    latency_us       REAL,
    snapshot_age_s   REAL
);
CREATE INDEX decisions_by_time ON decisions (decided_at);

-- Token to job id, seen while the job was live: other tools may overwrite the token in AdminComment later.
CREATE TABLE job_tokens (
    cluster    TEXT NOT NULL,
    job_id     INTEGER NOT NULL,  -- an array's base id, a het job's leader
    token      TEXT NOT NULL,
    first_seen REAL NOT NULL,
    PRIMARY KEY (cluster, job_id, token)
) WITHOUT ROWID;
CREATE INDEX job_tokens_by_token ON job_tokens (token);

-- One row for each finished record of accounting: a job, an array task, and each run of a requeued job.
CREATE TABLE outcomes (
    cluster        TEXT NOT NULL,
    db_index       TEXT NOT NULL,     -- accounting's own key; above 2^63 in newer releases, hence text
    job            TEXT NOT NULL,     -- as sacct writes it: 12, 12_3, 12+1, 12_[4-9] (cancelled before they started)
    job_id         INTEGER NOT NULL,  -- raw: each array task has its own
    array_job_id   INTEGER,
    array_task     TEXT,              -- "3", or "[4-9]"
    het_job_id     INTEGER,
    het_offset     INTEGER,
    token          TEXT,
    submit         INTEGER,
    eligible       INTEGER,
    start          INTEGER,           -- NULL: never started
    end            INTEGER NOT NULL,
    elapsed        INTEGER NOT NULL,  -- seconds
    log_elapsed    REAL,              -- natural logarithm of it; NULL where it is 0
    state          TEXT NOT NULL,     -- one word: COMPLETED, FAILED, CANCELLED, TIMEOUT, REQUEUED, …
    exit_code      TEXT,              -- "3:0"
    user           TEXT,
    account        TEXT,
    partition      TEXT,
    qos            TEXT,
    name           TEXT,
    node_count     INTEGER,
    nodes          TEXT,              -- NULL: never allocated
    tres           TEXT,              -- AllocTRES
    cpus           INTEGER,
    memory_mb      INTEGER,
    gpus           INTEGER NOT NULL,
    gpu_type       TEXT,
    processor      TEXT NOT NULL,     -- the GPU type, "gpu" where it is unknown, "cpu", or "" if never started
    time_limit     INTEGER,           -- minutes; NULL: none
    admin_comment  TEXT,
    PRIMARY KEY (cluster, db_index)
) WITHOUT ROWID;
CREATE INDEX outcomes_by_token ON outcomes (token) WHERE token IS NOT NULL;
CREATE INDEX outcomes_by_job ON outcomes (job_id);
CREATE INDEX outcomes_by_array ON outcomes (array_job_id) WHERE array_job_id IS NOT NULL;

-- How far each collection has come.
CREATE TABLE cursors (
    name       TEXT PRIMARY KEY,
    position   INTEGER NOT NULL,
    updated_at REAL NOT NULL
) WITHOUT ROWID;

-- Tokens that jobs carry whose decision is not in the log: the daemon died before it was written.
CREATE TABLE lost_decisions (
    token      TEXT PRIMARY KEY,
    cluster    TEXT NOT NULL,
    job_id     INTEGER NOT NULL,
    first_seen REAL NOT NULL
) WITHOUT ROWID;
