-- What was done to jobs after their submission, round by round: why, and what became of it.
-- A row is written before Slurm is asked, so that a daemon that dies in between leaves a trace (outcome 'sent').

CREATE TABLE moves (
    id          INTEGER PRIMARY KEY,
    round       REAL NOT NULL,              -- when the round began; all rows of one round have it
    moved_at    REAL NOT NULL,
    cluster     TEXT NOT NULL,
    job_id      INTEGER NOT NULL,           -- an array's base id
    token       TEXT NOT NULL,
    lever       TEXT NOT NULL,              -- place
    mode        TEXT NOT NULL,              -- shadow, advise, enforce
    from_place  TEXT NOT NULL,              -- a candidate's name
    to_place    TEXT NOT NULL,
    before      TEXT NOT NULL DEFAULT '{}', -- JSON: the job's fields as they were
    after       TEXT NOT NULL DEFAULT '{}', -- JSON: as they were to be
    gain_s      REAL,                       -- expected
    why         TEXT NOT NULL,
    probability REAL NOT NULL DEFAULT 1.0,  -- rounds draw no lots
    outcome     TEXT NOT NULL,              -- sent, ok, refused, undone, half done, would (mode shadow or advise)
    said        TEXT                        -- Slurm's words, where it refused
);
CREATE INDEX moves_by_token ON moves (token);
CREATE INDEX moves_by_job ON moves (job_id);

-- Decisions whose job is not, or may not be, where it was sent at its submission.
CREATE VIEW moved AS SELECT token, job_id, cluster FROM moves WHERE outcome IN ('ok', 'sent', 'half done');
