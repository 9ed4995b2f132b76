-- What a Run is to run is forgotten when it ends (R12.1), by whichever command ends it.
-- Differs from SQLite: a trigger's own statements are a function.
CREATE FUNCTION runfacts_forget_commands() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM commands WHERE run_id = NEW.run_id;
    RETURN NULL;
END
$$;

CREATE TRIGGER runs_forget_commands AFTER UPDATE OF finished_at_ms ON runs
FOR EACH ROW WHEN (OLD.finished_at_ms IS NULL AND NEW.finished_at_ms IS NOT NULL)
EXECUTE FUNCTION runfacts_forget_commands();
