-- Ends a statement of several writes one of which did not hit its row (R4.1): all of it is undone, and the command is decided anew.
CREATE FUNCTION runfacts_lost_race() RETURNS integer
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'somebody else was first' USING ERRCODE = 'serialization_failure';
END
$$;
