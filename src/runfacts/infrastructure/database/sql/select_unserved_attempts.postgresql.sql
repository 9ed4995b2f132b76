-- The scopes of an executor type in which an Attempt has waited for recovery since before a time (R8.2).
-- A skip scan: one step of the index for each scope, however many rows there are.
WITH RECURSIVE scopes(scope) AS (
    SELECT (
        SELECT e.scope
        FROM executions AS e
        WHERE e.executor_type = CAST(:executor_type AS text) AND e.recover_at_ms IS NOT NULL
        ORDER BY e.scope
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT e.scope
        FROM executions AS e
        WHERE e.executor_type = CAST(:executor_type AS text) AND e.recover_at_ms IS NOT NULL AND e.scope > s.scope
        ORDER BY e.scope
        LIMIT 1
    )
    FROM scopes AS s
    WHERE s.scope IS NOT NULL
)
SELECT s.scope
FROM scopes AS s
WHERE s.scope IS NOT NULL AND (
    SELECT e.recover_at_ms
    FROM executions AS e
    WHERE e.executor_type = CAST(:executor_type AS text) AND e.scope = s.scope AND e.recover_at_ms IS NOT NULL
    ORDER BY e.recover_at_ms
    LIMIT 1
) <= CAST(:until_ms AS bigint)
