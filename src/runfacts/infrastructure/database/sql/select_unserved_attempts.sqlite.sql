-- The scopes of an executor type in which an Attempt has waited for recovery since before a time (R8.2).
-- A skip scan. Differs from PostgreSQL: without statistics SQLite takes any index that has the columns, so it is named.
WITH RECURSIVE scopes(scope) AS (
    SELECT (
        SELECT e.scope
        FROM executions AS e INDEXED BY ix_executions_recovery
        WHERE e.executor_type = :executor_type AND e.recover_at_ms IS NOT NULL
        ORDER BY e.scope
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT e.scope
        FROM executions AS e INDEXED BY ix_executions_recovery
        WHERE e.executor_type = :executor_type AND e.recover_at_ms IS NOT NULL AND e.scope > s.scope
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
    FROM executions AS e INDEXED BY ix_executions_recovery
    WHERE e.executor_type = :executor_type AND e.scope = s.scope AND e.recover_at_ms IS NOT NULL
    ORDER BY e.recover_at_ms
    LIMIT 1
) <= :until_ms
