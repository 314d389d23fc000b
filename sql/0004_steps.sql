-- What accounting says a job used, and its steps.

ALTER TABLE outcomes ADD COLUMN cpu_s REAL;          -- CPU time of all its steps, user and system
ALTER TABLE outcomes ADD COLUMN max_rss_mb INTEGER;  -- of the largest task of any step

CREATE TABLE steps (
    cluster    TEXT NOT NULL,
    db_index   TEXT NOT NULL,     -- of the record in outcomes that it is a step of
    step       TEXT NOT NULL,     -- batch, extern, interactive, 0, 1, …; of a het step 0+1
    name       TEXT,
    state      TEXT NOT NULL,
    exit_code  TEXT,
    start      INTEGER,
    end        INTEGER,           -- NULL: accounting never heard of its end
    elapsed    INTEGER NOT NULL,
    tasks      INTEGER,
    node_count INTEGER,
    nodes      TEXT,
    tres       TEXT,
    user_s     REAL,              -- CPU time
    system_s   REAL,
    max_rss_mb INTEGER,
    PRIMARY KEY (cluster, db_index, step)
) WITHOUT ROWID;
CREATE INDEX steps_by_end ON steps (end);
