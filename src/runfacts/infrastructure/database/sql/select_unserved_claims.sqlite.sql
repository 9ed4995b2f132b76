-- The scopes of an executor type in which a claim of a purpose has waited since before a time (R8.2).
-- A skip scan. Differs from PostgreSQL: without statistics SQLite takes any index that has the columns, so it is named.
WITH RECURSIVE scopes(scope) AS (
    SELECT (
        SELECT c.scope
        FROM recovery_claims AS c INDEXED BY ix_recovery_claims_due
        WHERE c.purpose = :purpose
          AND c.executor_type = :executor_type
          AND c.due_at_ms IS NOT NULL
        ORDER BY c.scope
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT c.scope
        FROM recovery_claims AS c INDEXED BY ix_recovery_claims_due
        WHERE c.purpose = :purpose
          AND c.executor_type = :executor_type
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
    FROM recovery_claims AS c INDEXED BY ix_recovery_claims_due
    WHERE c.purpose = :purpose
      AND c.executor_type = :executor_type
      AND c.scope = s.scope
      AND c.due_at_ms IS NOT NULL
    ORDER BY c.due_at_ms
    LIMIT 1
) <= :until_ms
