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
