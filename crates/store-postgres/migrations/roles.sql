-- Who is granted this role may schedule and cancel, and nothing else. Roles are the server's, not the database's: it may be
-- there already, or may not be ours to make.
do $$
begin
    if not exists (select from pg_roles where rolname = 'reveille_client') then
        create role reveille_client nologin;
    end if;
exception
    when insufficient_privilege then
        raise notice 'reveille_client is not made: this user may not make roles';
    when duplicate_object or unique_violation then
        null;
end $$;

do $$
begin
    if exists (select from pg_roles where rolname = 'reveille_client') then
        grant usage on schema reveille to reveille_client;
        grant execute on function reveille.schedule(text, text, jsonb), reveille.cancel(text, text) to reveille_client;
    end if;
end $$;
