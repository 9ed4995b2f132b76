-- Frozen with revision 0003: the tables of recovery, and what executions say of their last sight and their end.
CREATE TABLE recovery_claims (
    purpose TEXT NOT NULL,
    kind TEXT NOT NULL,
    item_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    attempt_id TEXT,
    executor_type TEXT NOT NULL,
    scope TEXT NOT NULL,
    state TEXT NOT NULL,
    version INTEGER NOT NULL,
    owner TEXT,
    token_digest TEXT,
    claim_expires_at_ms INTEGER,
    claim_boot_id TEXT,
    claim_expires_boot_ms INTEGER,
    next_claim_at_ms INTEGER,
    due_at_ms INTEGER,
    delays INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    reason TEXT,
    seen TEXT,
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    CONSTRAINT pk_recovery_claims PRIMARY KEY (purpose, kind, item_id),
    CONSTRAINT fk_recovery_claims_run_id FOREIGN KEY(run_id) REFERENCES runs (run_id),
    CONSTRAINT ck_recovery_claims_item_id CHECK (length(item_id) = 36),
    CONSTRAINT ck_recovery_claims_run_id CHECK (length(run_id) = 36),
    CONSTRAINT ck_recovery_claims_attempt_id CHECK (attempt_id IS NULL OR length(attempt_id) = 36),
    CONSTRAINT ck_recovery_claims_claim_boot_id CHECK (claim_boot_id IS NULL OR length(claim_boot_id) = 36),
    CONSTRAINT ck_recovery_claims_token_digest CHECK (token_digest IS NULL OR length(token_digest) = 64),
    CONSTRAINT ck_recovery_claims_owner CHECK (owner IS NULL OR length(owner) BETWEEN 1 AND 200),
    CONSTRAINT ck_recovery_claims_seen CHECK (seen IS NULL OR length(seen) BETWEEN 1 AND 512),
    CONSTRAINT ck_recovery_claims_version CHECK (version >= 0),
    CONSTRAINT ck_recovery_claims_claim_expires_at_ms CHECK (claim_expires_at_ms IS NULL OR claim_expires_at_ms >= 0),
    CONSTRAINT ck_recovery_claims_claim_expires_boot_ms CHECK (claim_expires_boot_ms IS NULL OR claim_expires_boot_ms >= 0),
    CONSTRAINT ck_recovery_claims_next_claim_at_ms CHECK (next_claim_at_ms IS NULL OR next_claim_at_ms >= 0),
    CONSTRAINT ck_recovery_claims_due_at_ms CHECK (due_at_ms IS NULL OR due_at_ms >= 0),
    CONSTRAINT ck_recovery_claims_delays CHECK (delays >= 0),
    CONSTRAINT ck_recovery_claims_failures CHECK (failures >= 0),
    CONSTRAINT ck_recovery_claims_created_at_ms CHECK (created_at_ms >= 0),
    CONSTRAINT ck_recovery_claims_purpose CHECK (purpose IN ('recovery', 'retry', 'stop')),
    CONSTRAINT ck_recovery_claims_kind CHECK (kind IN ('attempt') AND purpose IN ('recovery') OR kind IN ('run')),
    CONSTRAINT ck_recovery_claims_executor_type CHECK (length(executor_type) <= 200),
    CONSTRAINT ck_recovery_claims_scope CHECK (length(scope) <= 256),
    CONSTRAINT ck_recovery_claims_state CHECK (state IN ('available', 'claimed', 'manual', 'resolved', 'retry')),
    CONSTRAINT ck_recovery_claims_reason CHECK (reason IS NULL OR reason IN ('conflicting_evidence', 'failure_limit', 'identity_unverifiable', 'inconsistent', 'scope_unserved', 'stuck_created', 'unexpected')),
    CONSTRAINT ck_recovery_claims_held CHECK (state IN ('claimed') AND owner IS NOT NULL OR (state NOT IN ('claimed')) AND owner IS NULL),
    CONSTRAINT ck_recovery_claims_token CHECK (state IN ('claimed') AND token_digest IS NOT NULL OR (state NOT IN ('claimed')) AND token_digest IS NULL),
    CONSTRAINT ck_recovery_claims_expiry CHECK (state IN ('claimed') AND claim_expires_at_ms IS NOT NULL OR (state NOT IN ('claimed')) AND claim_expires_at_ms IS NULL),
    CONSTRAINT ck_recovery_claims_next_claim CHECK (state IN ('retry') AND next_claim_at_ms IS NOT NULL OR (state NOT IN ('retry')) AND next_claim_at_ms IS NULL),
    CONSTRAINT ck_recovery_claims_due CHECK (state IN ('available', 'claimed', 'retry') AND due_at_ms IS NOT NULL OR (state NOT IN ('available', 'claimed', 'retry')) AND due_at_ms IS NULL),
    CONSTRAINT ck_recovery_claims_manual_reason CHECK (state IN ('manual') AND reason IS NOT NULL OR (state NOT IN ('manual')) AND reason IS NULL),
    CONSTRAINT ck_recovery_claims_manual_seen CHECK (state IN ('manual') AND seen IS NOT NULL OR (state NOT IN ('manual')) AND seen IS NULL),
    CONSTRAINT ck_recovery_claims_attempt CHECK (kind IN ('run') OR attempt_id IS NOT NULL),
    CONSTRAINT ck_recovery_claims_updated CHECK (updated_at_ms >= created_at_ms),
    CONSTRAINT ck_recovery_claims_boot_claim CHECK ((state IN ('claimed') AND claim_boot_id IS NOT NULL OR (state NOT IN ('claimed')) AND claim_boot_id IS NULL) AND (state IN ('claimed') AND claim_expires_boot_ms IS NOT NULL OR (state NOT IN ('claimed')) AND claim_expires_boot_ms IS NULL))
) STRICT;

CREATE INDEX ix_recovery_claims_due ON recovery_claims (purpose, executor_type, scope, due_at_ms, item_id) WHERE due_at_ms IS NOT NULL;

CREATE INDEX ix_recovery_claims_manual ON recovery_claims (updated_at_ms, item_id, purpose) WHERE state IN ('manual');

CREATE INDEX ix_recovery_claims_run_id ON recovery_claims (run_id);

CREATE TABLE workers (
    worker_id TEXT NOT NULL,
    machine_id TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    scope TEXT NOT NULL,
    started_at_ms INTEGER NOT NULL,
    seen_at_ms INTEGER NOT NULL,
    CONSTRAINT pk_workers PRIMARY KEY (worker_id),
    CONSTRAINT ck_workers_boot_id CHECK (length(boot_id) = 36),
    CONSTRAINT ck_workers_worker_id CHECK (length(worker_id) BETWEEN 1 AND 200),
    CONSTRAINT ck_workers_machine_id CHECK (length(machine_id) BETWEEN 1 AND 256),
    CONSTRAINT ck_workers_scope CHECK (length(scope) BETWEEN 1 AND 256),
    CONSTRAINT ck_workers_started_at_ms CHECK (started_at_ms >= 0),
    CONSTRAINT ck_workers_seen CHECK (seen_at_ms >= started_at_ms)
) STRICT;

CREATE INDEX ix_workers_boot_seen_at_ms ON workers (machine_id, boot_id, seen_at_ms);

CREATE INDEX ix_workers_boot_started_at_ms ON workers (machine_id, boot_id, started_at_ms);

CREATE TABLE commands (
    run_id TEXT NOT NULL,
    argv TEXT NOT NULL,
    cwd TEXT NOT NULL,
    CONSTRAINT pk_commands PRIMARY KEY (run_id),
    CONSTRAINT fk_commands_run_id FOREIGN KEY(run_id) REFERENCES runs (run_id) DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT ck_commands_cwd CHECK (length(cwd) BETWEEN 1 AND 4096),
    CONSTRAINT ck_commands_argv CHECK (length(CAST(argv AS BLOB)) BETWEEN 2 AND 131072)
) STRICT;

ALTER TABLE executions ADD COLUMN seen_at_ms INTEGER;

ALTER TABLE executions ADD COLUMN closed_at_ms INTEGER;

-- All of them, in the order of a new ledger: of two indexes that would do, SQLite takes the one made last.
DROP INDEX ix_executions_deadline;

DROP INDEX ix_executions_recovery;

DROP INDEX ix_executions_run_id;

CREATE INDEX ix_executions_deadline ON executions (deadline_at_ms, attempt_id) WHERE deadline_at_ms IS NOT NULL AND closed_at_ms IS NULL;

CREATE INDEX ix_executions_open ON executions (executor_type, scope, attempt_id) WHERE closed_at_ms IS NULL;

CREATE INDEX ix_executions_recovery ON executions (executor_type, scope, recover_at_ms, attempt_id) WHERE recover_at_ms IS NOT NULL;

CREATE INDEX ix_executions_run_id ON executions (run_id);

-- Those who executed an Attempt that has ended are closed with it.
UPDATE executions SET closed_at_ms = (
    SELECT attempts.finished_at_ms FROM attempts WHERE attempts.attempt_id = executions.attempt_id
);

-- When a holder was seen last was not noted. The end of its lease is later than that for sure, and so proves less.
UPDATE executions SET seen_at_ms = lease_expires_at_ms;

-- Who was asked to stop is looked after by stop confirmation (R12.2).
UPDATE executions SET recover_at_ms = NULL
WHERE recover_at_ms IS NOT NULL AND EXISTS (
    SELECT 1 FROM runs WHERE runs.run_id = executions.run_id AND runs.intent_at_ms IS NOT NULL
);

-- The stop row that a request makes from now on: due when the lease ends, or sooner, 30 seconds after the delivery.
INSERT INTO recovery_claims (
    purpose, kind, item_id, run_id, attempt_id, executor_type, scope, state, version, due_at_ms, delays, failures,
    created_at_ms, updated_at_ms
)
SELECT 'stop', 'run', runs.run_id, runs.run_id, executions.attempt_id,
    coalesce(executions.executor_type, ''), coalesce(executions.scope, ''), 'available', 0,
    coalesce(
        CASE
            WHEN dispatches.status IN ('dispatched', 'blocked')
                AND dispatches.updated_at_ms + 30000 < executions.lease_expires_at_ms
            THEN dispatches.updated_at_ms + 30000
            ELSE executions.lease_expires_at_ms
        END,
        runs.intent_at_ms
    ),
    0, 0, runs.intent_at_ms, runs.intent_at_ms
FROM runs
LEFT JOIN executions ON executions.attempt_id = runs.active_attempt_id
LEFT JOIN cancellation_dispatches AS dispatches ON dispatches.run_id = runs.run_id
WHERE runs.intent_at_ms IS NOT NULL AND runs.finished_at_ms IS NULL AND runs.execution_owner = 'runtime';

-- The retry row of what was lost or waits for its retry (R12.1), in the place of the Attempt before.
INSERT INTO recovery_claims (
    purpose, kind, item_id, run_id, attempt_id, executor_type, scope, state, version, due_at_ms, delays, failures,
    created_at_ms, updated_at_ms
)
SELECT 'retry', 'run', runs.run_id, runs.run_id, executions.attempt_id,
    coalesce(executions.executor_type, ''), coalesce(executions.scope, ''), 'available', 0,
    coalesce(runs.retry_due_at_ms, runs.updated_at_ms), 0, 0, runs.updated_at_ms, runs.updated_at_ms
FROM runs
LEFT JOIN attempts ON attempts.run_id = runs.run_id AND attempts.number = runs.attempt_count
LEFT JOIN executions ON executions.attempt_id = attempts.attempt_id
WHERE runs.status IN ('lost', 'retry_wait') AND runs.execution_owner = 'runtime';

-- What a Run is to run is forgotten when it ends (R12.1), by whichever command ends it.
CREATE TRIGGER runs_forget_commands AFTER UPDATE OF finished_at_ms ON runs
WHEN OLD.finished_at_ms IS NULL AND NEW.finished_at_ms IS NOT NULL
BEGIN
    DELETE FROM commands WHERE run_id = NEW.run_id;
END;
