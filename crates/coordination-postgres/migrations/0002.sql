-- What meets here knows this place from another by it.
alter table reveille_coordination.meta add column id uuid not null default gen_random_uuid();

-- As join_as, of a session that was opened before: one that has ended does not come back, though its row is gone.
create function reveille_coordination.join_again(
    asked_id uuid, asked_name text, asked_address text, asked_owns boolean, asked_build text, lease_millis bigint
) returns bigint
language plpgsql as $$
declare
    seen timestamptz;
begin
    perform reveille_coordination.take_turn();
    perform 1 from reveille_coordination.member where id = asked_id for no key update;
    seen := clock_timestamp();
    update reveille_coordination.member set name = asked_name, address = asked_address, owns = asked_owns,
        build = asked_build, lease_end = seen + lease_millis * interval '1 millisecond'
        where id = asked_id and lease_end > seen;
    if not found then
        return null;
    end if;
    notify reveille_coordination;
    return reveille_coordination.millis(seen);
end $$;
