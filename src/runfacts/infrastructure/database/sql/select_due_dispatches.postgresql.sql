-- One page of dispatches that are due, oldest first: what a round covers, and what a clock that stepped back left (R9.1).
-- The database's time decides leases: an end further ahead than the longest lease was never given by this clock (R5.3).
-- The server keeps one plan of this only if knowing the parameters promises nothing cheaper, and they do where nearly all
-- rows of a large table have no due time: it would plan anew for each page, which takes longer than the page. Behind a
-- SELECT no plan knows them. A page has 64 at most (R9.1), and the limit is written out so that every plan does know that
-- few rows are wanted.
SELECT * FROM (
    SELECT d.run_id, d.attempt_id, r.intent_at_ms, d.due_at_ms
    FROM cancellation_dispatches AS d
    JOIN runs AS r ON r.run_id = d.run_id
    WHERE d.executor_type = (SELECT CAST(:executor_type AS text))
      AND d.scope = (SELECT CAST(:scope AS text))
      AND d.due_at_ms IS NOT NULL
      AND d.due_at_ms <= (SELECT CAST(:cutoff_ms AS bigint))
      -- As a pair, so that a later page begins in the index where the one before ended.
      AND (d.due_at_ms, d.run_id) > ((SELECT CAST(:after_ms AS bigint)), (SELECT CAST(:after_id AS text)))
      -- A row of an ended Run is history, also where its Run ended while the row was being made (R7.6).
      AND r.finished_at_ms IS NULL
    ORDER BY d.due_at_ms, d.run_id
    LIMIT 65
) AS in_round
UNION ALL
SELECT * FROM (
    SELECT d.run_id, d.attempt_id, r.intent_at_ms, d.due_at_ms
    FROM cancellation_dispatches AS d
    JOIN runs AS r ON r.run_id = d.run_id
    WHERE d.executor_type = (SELECT CAST(:executor_type AS text))
      AND d.scope = (SELECT CAST(:scope AS text))
      AND d.due_at_ms IS NOT NULL
      AND d.status IN ('leased', 'pending')
      AND d.due_at_ms > (SELECT CAST(:now_ms AS bigint))
      AND (d.status <> 'leased' OR d.lease_expires_at_ms > (SELECT CAST(:longest_ms AS bigint)))
      AND (d.due_at_ms, d.run_id) > ((SELECT CAST(:after_ms AS bigint)), (SELECT CAST(:after_id AS text)))
      AND r.finished_at_ms IS NULL
    ORDER BY d.due_at_ms, d.run_id
    LIMIT 65
) AS ahead
UNION ALL
SELECT * FROM (
    SELECT d.run_id, d.attempt_id, r.intent_at_ms, d.due_at_ms
    FROM cancellation_dispatches AS d
    JOIN runs AS r ON r.run_id = d.run_id
    WHERE d.executor_type = (SELECT CAST(:executor_type AS text))
      AND d.scope = (SELECT CAST(:scope AS text))
      AND d.due_at_ms IS NOT NULL
      AND d.status = 'retry_wait'
      AND d.due_at_ms > (SELECT CAST(:beyond_ms AS bigint))
      AND (d.due_at_ms, d.run_id) > ((SELECT CAST(:after_ms AS bigint)), (SELECT CAST(:after_id AS text)))
      AND r.finished_at_ms IS NULL
    ORDER BY d.due_at_ms, d.run_id
    LIMIT 65
) AS beyond
ORDER BY due_at_ms, run_id
LIMIT CAST(:limit AS bigint)
