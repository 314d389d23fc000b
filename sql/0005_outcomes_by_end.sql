-- Models take in what has ended since they last looked, and a collection counts what is new in the hours it reads.

CREATE INDEX outcomes_by_end ON outcomes (end);
-- Runs that were sent back, of which there are few: a later run of the same job may have gone on from a checkpoint.
CREATE INDEX outcomes_sent_back ON outcomes (cluster, job_id, end) WHERE state IN ('REQUEUED', 'PREEMPTED', 'NODE_FAIL');
