-- What a Run is to run is forgotten when it ends (R12.1), by whichever command ends it.
CREATE TRIGGER runs_forget_commands AFTER UPDATE OF finished_at_ms ON runs
WHEN OLD.finished_at_ms IS NULL AND NEW.finished_at_ms IS NOT NULL
BEGIN
    DELETE FROM commands WHERE run_id = NEW.run_id;
END;
