-- The time that decides every expiry and due time, in UTC milliseconds (R5.1). A test database replaces the body.
CREATE FUNCTION runfacts_now_ms() RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint $$;
