-- The scopes of an executor type in which a claim of a purpose has waited since before a time (R8.2).
-- A skip scan: one step of the index for each scope, however many rows there are.
WITH RECURSIVE scopes(scope) AS (
    SELECT (
        SELECT c.scope
        FROM recovery_claims AS c
        WHERE c.purpose = CAST(:purpose AS text)
          AND c.executor_type = CAST(:executor_type AS text)
          AND c.due_at_ms IS NOT NULL
        ORDER BY c.scope
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT c.scope
        FROM recovery_claims AS c
        WHERE c.purpose = CAST(:purpose AS text)
          AND c.executor_type = CAST(:executor_type AS text)
          AND c.due_at_ms IS NOT NULL
          AND c.scope > s.scope
        ORDER BY c.scope
        LIMIT 1
    )
    FROM scopes AS s
    WHERE s.scope IS NOT NULL
)
SELECT s.scope
FROM scopes AS s
WHERE s.scope IS NOT NULL AND (
    SELECT c.due_at_ms
    FROM recovery_claims AS c
    WHERE c.purpose = CAST(:purpose AS text)
      AND c.executor_type = CAST(:executor_type AS text)
      AND c.scope = s.scope
      AND c.due_at_ms IS NOT NULL
    ORDER BY c.due_at_ms
    LIMIT 1
) <= CAST(:until_ms AS bigint)
