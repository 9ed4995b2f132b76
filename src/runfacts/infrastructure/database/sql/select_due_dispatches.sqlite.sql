-- One page of dispatches that are due, oldest first: what a round covers, and what a clock that stepped back left (R9.1).
-- Differs from PostgreSQL: the boot clock decides leases, and one of another boot is worth nothing (R5.2). Without
-- statistics SQLite takes any index that has the columns, so the one that holds no waiting rows is named.
SELECT * FROM (
    SELECT d.run_id, d.attempt_id, r.intent_at_ms, d.due_at_ms
    FROM cancellation_dispatches AS d
    JOIN runs AS r ON r.run_id = d.run_id
    WHERE d.executor_type = :executor_type
      AND d.scope = :scope
      AND d.due_at_ms IS NOT NULL
      AND d.due_at_ms <= :cutoff_ms
      AND (d.status <> 'leased' OR d.lease_boot_id <> :boot_id OR d.lease_expires_boot_ms <= :boot_ms)
      -- As a pair, so that a later page begins in the index where the one before ended.
      AND (d.due_at_ms, d.run_id) > (:after_ms, :after_id)
      -- A row of an ended Run is history, also where its Run ended while the row was being made (R7.6).
      AND r.finished_at_ms IS NULL
    ORDER BY d.due_at_ms, d.run_id
    LIMIT :limit
) AS in_round
UNION ALL
SELECT * FROM (
    SELECT d.run_id, d.attempt_id, r.intent_at_ms, d.due_at_ms
    FROM cancellation_dispatches AS d INDEXED BY ix_cancellation_dispatches_open
    JOIN runs AS r ON r.run_id = d.run_id
    WHERE d.executor_type = :executor_type
      AND d.scope = :scope
      AND d.due_at_ms IS NOT NULL
      AND d.status IN ('leased', 'pending')
      AND d.due_at_ms > :now_ms
      AND (d.status <> 'leased' OR d.lease_boot_id <> :boot_id OR d.lease_expires_boot_ms <= :boot_ms)
      AND (d.due_at_ms, d.run_id) > (:after_ms, :after_id)
      AND r.finished_at_ms IS NULL
    ORDER BY d.due_at_ms, d.run_id
    LIMIT :limit
) AS ahead
UNION ALL
SELECT * FROM (
    SELECT d.run_id, d.attempt_id, r.intent_at_ms, d.due_at_ms
    FROM cancellation_dispatches AS d
    JOIN runs AS r ON r.run_id = d.run_id
    WHERE d.executor_type = :executor_type
      AND d.scope = :scope
      AND d.due_at_ms IS NOT NULL
      AND d.status = 'retry_wait'
      AND d.due_at_ms > :beyond_ms
      AND (d.due_at_ms, d.run_id) > (:after_ms, :after_id)
      AND r.finished_at_ms IS NULL
    ORDER BY d.due_at_ms, d.run_id
    LIMIT :limit
) AS beyond
ORDER BY due_at_ms, run_id
LIMIT :limit
