-- Views for people and for learning.

-- Each decision with every record of the job it became; one row with empty job columns while nothing is known of it.
CREATE VIEW job_story AS
SELECT
    d.token,
    d.decided_at,
    d.user,
    d.account,
    d.app,
    d.mode,
    d.action,
    d.eligible,
    d.applied,
    d.holdout,
    json_extract(d.candidates, '$[' || d.chosen || '].name')    AS chosen,
    json_extract(d.candidates, '$[' || d.preferred || '].name') AS preferred,
    d.probability,
    json_extract(d.predictions, '$[' || d.chosen || '].wait_s') AS predicted_wait,
    json_extract(d.predictions, '$[' || d.chosen || '].run_s')  AS predicted_run,
    d.why,
    o.cluster,
    o.job,
    o.job_id,
    row_number() OVER (PARTITION BY d.token, o.cluster, o.job_id ORDER BY o.submit, o.end) - 1 AS restarts,
    o.partition,
    o.processor,
    o.nodes,
    o.state,
    o.exit_code,
    o.start - o.submit                                          AS wait,
    o.elapsed                                                   AS run,
    o.submit,
    o.start,
    o.end
FROM decisions AS d
LEFT JOIN outcomes AS o ON o.token = d.token;

-- How long each app ran on each processor, of the jobs that completed: of the natural logarithm of seconds.
-- An app is what the decision says, and the job's name for jobs that have none.
CREATE VIEW run_time_history AS
SELECT
    app,
    processor,
    count(*)                                                                             AS runs,
    avg(log_elapsed)                                                                     AS mean_log,
    CASE WHEN count(*) > 1
         THEN max(0.0, (sum(log_elapsed * log_elapsed) - count(*) * avg(log_elapsed) * avg(log_elapsed))
                       / (count(*) - 1))
         ELSE 0.0 END                                                                    AS variance_log
FROM (
    SELECT coalesce(d.app, o.name) AS app, o.processor, o.log_elapsed
    FROM outcomes AS o
    LEFT JOIN decisions AS d ON d.token = o.token
    WHERE o.state = 'COMPLETED' AND o.log_elapsed IS NOT NULL
)
WHERE app IS NOT NULL AND app <> ''
GROUP BY app, processor;

-- How jobs ended, by mode and by whether they were changed.
CREATE VIEW states_by_mode AS
SELECT d.mode, d.applied, d.holdout, o.state, count(*) AS jobs, avg(o.start - o.submit) AS mean_wait,
       avg(o.elapsed) AS mean_run
FROM decisions AS d
JOIN outcomes AS o ON o.token = d.token
GROUP BY d.mode, d.applied, d.holdout, o.state;
