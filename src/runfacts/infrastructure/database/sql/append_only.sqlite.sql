-- Facts are only ever inserted (R1.1): the database refuses the rest, whoever asks.
-- Differs from PostgreSQL: REPLACE deletes rows without firing a DELETE trigger, and a row number may be named.
CREATE TRIGGER facts_refuse_update BEFORE UPDATE ON facts
BEGIN
    SELECT RAISE(ABORT, 'facts are append-only: UPDATE is refused');
END;

CREATE TRIGGER facts_refuse_delete BEFORE DELETE ON facts
BEGIN
    SELECT RAISE(ABORT, 'facts are append-only: DELETE is refused');
END;

-- INSERT OR REPLACE would remove the fact that is in its way. The words are those of the constraint itself.
CREATE TRIGGER facts_refuse_replace BEFORE INSERT ON facts
BEGIN
    SELECT RAISE(ABORT, 'UNIQUE constraint failed: facts.position')
    WHERE EXISTS (SELECT 1 FROM facts WHERE position = NEW.position);
    SELECT RAISE(ABORT, 'UNIQUE constraint failed: facts.run_id, facts.sequence')
    WHERE EXISTS (SELECT 1 FROM facts WHERE run_id = NEW.run_id AND sequence = NEW.sequence);
    SELECT RAISE(ABORT, 'UNIQUE constraint failed: facts.aggregate_id, facts.aggregate_version')
    WHERE EXISTS (
        SELECT 1 FROM facts WHERE aggregate_id = NEW.aggregate_id AND aggregate_version = NEW.aggregate_version
    );
    SELECT RAISE(ABORT, 'UNIQUE constraint failed: facts.run_id, facts.dedupe_key')
    WHERE EXISTS (SELECT 1 FROM facts WHERE run_id = NEW.run_id AND dedupe_key = NEW.dedupe_key);
END;

-- Positions have no hole and no leap: after a row numbered by hand at the very end no further fact could be recorded in order.
CREATE TRIGGER facts_refuse_gap AFTER INSERT ON facts
WHEN NEW.position > 1
BEGIN
    SELECT RAISE(ABORT, 'facts are append-only: positions are dense')
    WHERE NOT EXISTS (SELECT 1 FROM facts WHERE position = NEW.position - 1);
END;
