-- A prediction tells the run time alone and the slowdown beside its neighbours; what a job is to take is their product.

DROP VIEW job_story;
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
    json_extract(d.predictions, '$[' || d.chosen || '].run_s')
        * coalesce(json_extract(d.predictions, '$[' || d.chosen || '].slowdown'), 1) AS predicted_run,
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
