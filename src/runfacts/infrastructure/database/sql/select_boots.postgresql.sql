-- Every boot of a machine: when its first worker started, and when one of them was seen last (R8.3).
-- A skip scan: three steps of indexes for each boot, however many processes there have been.
WITH RECURSIVE boots(boot_id) AS (
    SELECT (
        SELECT w.boot_id
        FROM workers AS w
        WHERE w.machine_id = CAST(:machine_id AS text)
        ORDER BY w.boot_id
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT w.boot_id
        FROM workers AS w
        WHERE w.machine_id = CAST(:machine_id AS text) AND w.boot_id > b.boot_id
        ORDER BY w.boot_id
        LIMIT 1
    )
    FROM boots AS b
    WHERE b.boot_id IS NOT NULL
)
SELECT b.boot_id,
    (
        SELECT w.started_at_ms
        FROM workers AS w
        WHERE w.machine_id = CAST(:machine_id AS text) AND w.boot_id = b.boot_id
        ORDER BY w.started_at_ms
        LIMIT 1
    ),
    (
        SELECT w.seen_at_ms
        FROM workers AS w
        WHERE w.machine_id = CAST(:machine_id AS text) AND w.boot_id = b.boot_id
        ORDER BY w.seen_at_ms DESC
        LIMIT 1
    )
FROM boots AS b
WHERE b.boot_id IS NOT NULL
