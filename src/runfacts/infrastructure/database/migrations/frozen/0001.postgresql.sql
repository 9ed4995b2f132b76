-- Revision 0001, frozen: a later change of the schema is a revision of its own.

CREATE TABLE facts (
    position BIGINT GENERATED ALWAYS AS IDENTITY (INCREMENT BY 1 START WITH 1 CACHE 1 NO CYCLE),
    run_id TEXT COLLATE "C" NOT NULL,
    sequence BIGINT NOT NULL,
    type TEXT COLLATE "C" NOT NULL,
    schema_version BIGINT NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    attempt_id TEXT COLLATE "C",
    actor_type TEXT COLLATE "C" NOT NULL,
    actor_id TEXT COLLATE "C",
    dedupe_key TEXT COLLATE "C",
    correlation_id TEXT COLLATE "C",
    causation_id TEXT COLLATE "C",
    recorded_at_ms BIGINT NOT NULL,
    payload TEXT COLLATE "C" NOT NULL,
    aggregate_id TEXT COLLATE "C" NOT NULL,
    aggregate_version BIGINT NOT NULL,
    hash TEXT COLLATE "C" NOT NULL,
    CONSTRAINT pk_facts PRIMARY KEY (position),
    CONSTRAINT uq_facts_run_id_sequence UNIQUE (run_id, sequence),
    CONSTRAINT uq_facts_aggregate_id_aggregate_version UNIQUE (aggregate_id, aggregate_version),
    CONSTRAINT ck_facts_run_id CHECK (length(run_id) = 36),
    CONSTRAINT ck_facts_attempt_id CHECK (attempt_id IS NULL OR length(attempt_id) = 36),
    CONSTRAINT ck_facts_aggregate_id CHECK (length(aggregate_id) = 36),
    CONSTRAINT ck_facts_hash CHECK (length(hash) = 64),
    CONSTRAINT ck_facts_type CHECK (length(type) BETWEEN 1 AND 200),
    CONSTRAINT ck_facts_project CHECK (length(project) BETWEEN 1 AND 200),
    CONSTRAINT ck_facts_actor_id CHECK (actor_id IS NULL OR length(actor_id) BETWEEN 1 AND 128),
    CONSTRAINT ck_facts_dedupe_key CHECK (dedupe_key IS NULL OR length(dedupe_key) BETWEEN 1 AND 256),
    CONSTRAINT ck_facts_correlation_id CHECK (correlation_id IS NULL OR length(correlation_id) BETWEEN 1 AND 256),
    CONSTRAINT ck_facts_causation_id CHECK (causation_id IS NULL OR length(causation_id) BETWEEN 1 AND 256),
    CONSTRAINT ck_facts_position CHECK (position >= 1),
    CONSTRAINT ck_facts_sequence CHECK (sequence >= 1),
    CONSTRAINT ck_facts_schema_version CHECK (schema_version >= 1),
    CONSTRAINT ck_facts_aggregate_version CHECK (aggregate_version >= 1),
    CONSTRAINT ck_facts_recorded_at_ms CHECK (recorded_at_ms >= 0),
    CONSTRAINT ck_facts_actor_type CHECK (actor_type IN ('agent', 'api', 'executor', 'legacy', 'operator', 'reconciler', 'scheduler', 'supervisor', 'system', 'trigger', 'user', 'worker')),
    CONSTRAINT ck_facts_payload CHECK (octet_length(payload) BETWEEN 2 AND 16384)
);

CREATE INDEX ix_facts_actor_id_position ON facts (actor_id, position) WHERE actor_id IS NOT NULL;

CREATE INDEX ix_facts_attempt_id_position ON facts (attempt_id, position) WHERE attempt_id IS NOT NULL;

CREATE INDEX ix_facts_later_versions ON facts (type, schema_version) WHERE schema_version > 1;

CREATE INDEX ix_facts_project_position ON facts (project, position);

CREATE INDEX ix_facts_recorded_at_ms_position ON facts (recorded_at_ms, position);

CREATE INDEX ix_facts_type_position ON facts (type, position);

CREATE UNIQUE INDEX uq_facts_run_id_dedupe_key ON facts (run_id, dedupe_key) WHERE dedupe_key IS NOT NULL;

CREATE TABLE ledger_meta (
    key TEXT COLLATE "C" NOT NULL,
    value TEXT COLLATE "C" NOT NULL,
    CONSTRAINT pk_ledger_meta PRIMARY KEY (key),
    CONSTRAINT ck_ledger_meta_key CHECK (length(key) BETWEEN 1 AND 200),
    CONSTRAINT ck_ledger_meta_value CHECK (length(value) BETWEEN 1 AND 256)
);

CREATE TABLE runs (
    run_id TEXT COLLATE "C" NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    task TEXT COLLATE "C" NOT NULL,
    status TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    head_hash TEXT COLLATE "C" NOT NULL,
    execution_owner TEXT COLLATE "C" NOT NULL,
    policy TEXT COLLATE "C" NOT NULL,
    idempotency_key TEXT COLLATE "C",
    retry_of_run_id TEXT COLLATE "C",
    active_attempt_id TEXT COLLATE "C",
    attempt_count BIGINT NOT NULL,
    intent_at_ms BIGINT,
    intent_kind TEXT COLLATE "C",
    deadline_at_ms BIGINT,
    retry_due_at_ms BIGINT,
    attested BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    updated_at_ms BIGINT NOT NULL,
    finished_at_ms BIGINT,
    CONSTRAINT pk_runs PRIMARY KEY (run_id),
    CONSTRAINT ck_runs_run_id CHECK (length(run_id) = 36),
    CONSTRAINT ck_runs_retry_of_run_id CHECK (retry_of_run_id IS NULL OR length(retry_of_run_id) = 36),
    CONSTRAINT ck_runs_active_attempt_id CHECK (active_attempt_id IS NULL OR length(active_attempt_id) = 36),
    CONSTRAINT ck_runs_head_hash CHECK (length(head_hash) = 64),
    CONSTRAINT ck_runs_project CHECK (length(project) BETWEEN 1 AND 200),
    CONSTRAINT ck_runs_task CHECK (length(task) BETWEEN 1 AND 200),
    CONSTRAINT ck_runs_idempotency_key CHECK (idempotency_key IS NULL OR length(idempotency_key) BETWEEN 1 AND 256),
    CONSTRAINT ck_runs_version CHECK (version >= 1),
    CONSTRAINT ck_runs_attempt_count CHECK (attempt_count >= 0),
    CONSTRAINT ck_runs_created_at_ms CHECK (created_at_ms >= 0),
    CONSTRAINT ck_runs_intent_at_ms CHECK (intent_at_ms IS NULL OR intent_at_ms >= 0),
    CONSTRAINT ck_runs_deadline_at_ms CHECK (deadline_at_ms IS NULL OR deadline_at_ms >= 0),
    CONSTRAINT ck_runs_status CHECK (status IN ('cancelled', 'created', 'dispatching', 'failed', 'lost', 'queued', 'retry_wait', 'running', 'succeeded', 'timed_out', 'waiting_approval')),
    CONSTRAINT ck_runs_execution_owner CHECK (execution_owner IN ('legacy', 'runtime')),
    CONSTRAINT ck_runs_attested CHECK (attested BETWEEN 0 AND 1),
    CONSTRAINT ck_runs_intent_kind CHECK (intent_kind IS NULL OR intent_kind IN ('policy', 'reconcile', 'shutdown', 'timeout', 'user')),
    CONSTRAINT ck_runs_policy CHECK (octet_length(policy) BETWEEN 2 AND 4096),
    CONSTRAINT ck_runs_intent CHECK (intent_at_ms IS NULL AND intent_kind IS NULL OR intent_at_ms IS NOT NULL AND intent_kind IS NOT NULL),
    CONSTRAINT ck_runs_active_attempt CHECK (active_attempt_id IS NULL OR status IN ('dispatching', 'running', 'waiting_approval') AND attempt_count >= 1),
    CONSTRAINT ck_runs_finished CHECK (status IN ('cancelled', 'failed', 'succeeded', 'timed_out') AND finished_at_ms IS NOT NULL OR (status NOT IN ('cancelled', 'failed', 'succeeded', 'timed_out')) AND finished_at_ms IS NULL),
    CONSTRAINT ck_runs_retry_due CHECK (status IN ('retry_wait') AND retry_due_at_ms IS NOT NULL OR (status NOT IN ('retry_wait')) AND retry_due_at_ms IS NULL),
    CONSTRAINT ck_runs_updated CHECK (updated_at_ms >= created_at_ms)
);

CREATE INDEX ix_runs_attested ON runs (updated_at_ms, run_id) WHERE attested = 1;

CREATE INDEX ix_runs_board ON runs (created_at_ms, run_id);

CREATE INDEX ix_runs_board_project ON runs (project, created_at_ms, run_id);

CREATE INDEX ix_runs_board_status ON runs (status, created_at_ms, run_id);

CREATE INDEX ix_runs_deadline ON runs (deadline_at_ms, run_id) WHERE deadline_at_ms IS NOT NULL AND finished_at_ms IS NULL AND intent_at_ms IS NULL;

CREATE INDEX ix_runs_intended ON runs (intent_at_ms, run_id) WHERE intent_at_ms IS NOT NULL AND finished_at_ms IS NULL;

CREATE INDEX ix_runs_ownerless ON runs (updated_at_ms, run_id) WHERE active_attempt_id IS NULL AND status IN ('dispatching', 'running', 'waiting_approval');

CREATE UNIQUE INDEX uq_runs_project_idempotency_key ON runs (project, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE executions (
    attempt_id TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    executor_type TEXT COLLATE "C" NOT NULL,
    gated BIGINT NOT NULL,
    scope TEXT COLLATE "C" NOT NULL,
    worker_id TEXT COLLATE "C",
    handle TEXT COLLATE "C",
    pid BIGINT,
    lease_token_digest TEXT COLLATE "C" NOT NULL,
    lease_expires_at_ms BIGINT NOT NULL,
    lease_boot_id TEXT COLLATE "C",
    lease_expires_boot_ms BIGINT,
    callback_sequence BIGINT NOT NULL,
    callback_token_digest TEXT COLLATE "C" NOT NULL,
    deadline_at_ms BIGINT,
    log_path TEXT COLLATE "C",
    receipt_path TEXT COLLATE "C",
    recover_at_ms BIGINT,
    CONSTRAINT pk_executions PRIMARY KEY (attempt_id),
    CONSTRAINT fk_executions_run_id FOREIGN KEY(run_id) REFERENCES runs (run_id),
    CONSTRAINT ck_executions_attempt_id CHECK (length(attempt_id) = 36),
    CONSTRAINT ck_executions_lease_boot_id CHECK (lease_boot_id IS NULL OR length(lease_boot_id) = 36),
    CONSTRAINT ck_executions_lease_token_digest CHECK (length(lease_token_digest) = 64),
    CONSTRAINT ck_executions_callback_token_digest CHECK (length(callback_token_digest) = 64),
    CONSTRAINT ck_executions_executor_type CHECK (length(executor_type) BETWEEN 1 AND 200),
    CONSTRAINT ck_executions_worker_id CHECK (worker_id IS NULL OR length(worker_id) BETWEEN 1 AND 200),
    CONSTRAINT ck_executions_log_path CHECK (log_path IS NULL OR length(log_path) BETWEEN 1 AND 4096),
    CONSTRAINT ck_executions_receipt_path CHECK (receipt_path IS NULL OR length(receipt_path) BETWEEN 1 AND 4096),
    CONSTRAINT ck_executions_pid CHECK (pid IS NULL OR pid >= 1),
    CONSTRAINT ck_executions_callback_sequence CHECK (callback_sequence >= 0),
    CONSTRAINT ck_executions_lease_expires_at_ms CHECK (lease_expires_at_ms >= 0),
    CONSTRAINT ck_executions_lease_expires_boot_ms CHECK (lease_expires_boot_ms IS NULL OR lease_expires_boot_ms >= 0),
    CONSTRAINT ck_executions_deadline_at_ms CHECK (deadline_at_ms IS NULL OR deadline_at_ms >= 0),
    CONSTRAINT ck_executions_gated CHECK (gated BETWEEN 0 AND 1),
    CONSTRAINT ck_executions_scope CHECK (length(scope) <= 256),
    CONSTRAINT ck_executions_handle CHECK (handle IS NULL OR octet_length(handle) BETWEEN 1 AND 512),
    CONSTRAINT ck_executions_no_boot_lease CHECK (lease_boot_id IS NULL AND lease_expires_boot_ms IS NULL)
);

CREATE INDEX ix_executions_deadline ON executions (deadline_at_ms, attempt_id) WHERE deadline_at_ms IS NOT NULL AND recover_at_ms IS NOT NULL;

CREATE INDEX ix_executions_recovery ON executions (executor_type, scope, recover_at_ms, attempt_id) WHERE recover_at_ms IS NOT NULL;

CREATE INDEX ix_executions_run_id ON executions (run_id);

CREATE TABLE attempts (
    attempt_id TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    status TEXT COLLATE "C" NOT NULL,
    executor_type TEXT COLLATE "C" NOT NULL,
    worker_id TEXT COLLATE "C",
    exit_code BIGINT,
    signal BIGINT,
    error_code TEXT COLLATE "C",
    error_summary TEXT COLLATE "C",
    claimed_at_ms BIGINT NOT NULL,
    started_at_ms BIGINT,
    running_at_ms BIGINT,
    finished_at_ms BIGINT,
    CONSTRAINT pk_attempts PRIMARY KEY (attempt_id),
    CONSTRAINT fk_attempts_attempt_id FOREIGN KEY(attempt_id) REFERENCES executions (attempt_id) DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT fk_attempts_run_id FOREIGN KEY(run_id) REFERENCES runs (run_id),
    CONSTRAINT uq_attempts_run_id_number UNIQUE (run_id, number),
    CONSTRAINT ck_attempts_attempt_id CHECK (length(attempt_id) = 36),
    CONSTRAINT ck_attempts_executor_type CHECK (length(executor_type) BETWEEN 1 AND 200),
    CONSTRAINT ck_attempts_worker_id CHECK (worker_id IS NULL OR length(worker_id) BETWEEN 1 AND 200),
    CONSTRAINT ck_attempts_error_code CHECK (error_code IS NULL OR length(error_code) BETWEEN 1 AND 128),
    CONSTRAINT ck_attempts_error_summary CHECK (error_summary IS NULL OR length(error_summary) BETWEEN 1 AND 1024),
    CONSTRAINT ck_attempts_number CHECK (number >= 1),
    CONSTRAINT ck_attempts_claimed_at_ms CHECK (claimed_at_ms >= 0),
    CONSTRAINT ck_attempts_status CHECK (status IN ('cancelled', 'claimed', 'failed', 'lost', 'running', 'starting', 'succeeded', 'timed_out')),
    CONSTRAINT ck_attempts_signal CHECK (signal IS NULL OR signal BETWEEN 1 AND 64),
    CONSTRAINT ck_attempts_finished CHECK ((status NOT IN ('claimed', 'running', 'starting')) AND finished_at_ms IS NOT NULL OR status IN ('claimed', 'running', 'starting') AND finished_at_ms IS NULL),
    CONSTRAINT ck_attempts_outcome CHECK (exit_code IS NULL AND signal IS NULL OR finished_at_ms IS NOT NULL AND (exit_code IS NULL OR signal IS NULL)),
    CONSTRAINT ck_attempts_error CHECK (finished_at_ms IS NOT NULL OR error_code IS NULL AND error_summary IS NULL),
    CONSTRAINT ck_attempts_phase CHECK (status IN ('claimed') AND started_at_ms IS NULL AND running_at_ms IS NULL OR status IN ('starting') AND started_at_ms IS NOT NULL AND running_at_ms IS NULL OR status IN ('running') AND started_at_ms IS NOT NULL AND running_at_ms IS NOT NULL OR (status NOT IN ('claimed', 'running', 'starting')) AND (running_at_ms IS NULL OR started_at_ms IS NOT NULL))
);

CREATE UNIQUE INDEX uq_attempts_active ON attempts (run_id) WHERE status IN ('claimed', 'running', 'starting');

-- The time that decides every expiry and due time, in UTC milliseconds (R5.1). A test database replaces the body.
CREATE FUNCTION runfacts_now_ms() RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint $$;

-- Ends a statement of several writes one of which did not hit its row (R4.1): all of it is undone, and the command is decided anew.
CREATE FUNCTION runfacts_lost_race() RETURNS integer
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'somebody else was first' USING ERRCODE = 'serialization_failure';
END
$$;

-- Facts are only ever inserted (R1.1): the database refuses the rest, whoever asks.
-- Differs from SQLite: TRUNCATE exists and fires statement triggers only.
CREATE FUNCTION runfacts_refuse_change() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'facts are append-only: % is refused', TG_OP USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER facts_refuse_change BEFORE UPDATE OR DELETE ON facts
FOR EACH ROW EXECUTE FUNCTION runfacts_refuse_change();

CREATE TRIGGER facts_refuse_truncate BEFORE TRUNCATE ON facts
FOR EACH STATEMENT EXECUTE FUNCTION runfacts_refuse_change();

-- Also where session_replication_role turns ordinary triggers off.
ALTER TABLE facts ENABLE ALWAYS TRIGGER facts_refuse_change;
ALTER TABLE facts ENABLE ALWAYS TRIGGER facts_refuse_truncate;
