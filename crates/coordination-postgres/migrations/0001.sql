-- Sessions, claims and electors. Every table is logged: an unlogged one is empty after a crash, and then two would hold
-- one claim until the first one's own clock tells it to stop.

create schema reveille_coordination;

create table reveille_coordination.meta (
    only_row boolean primary key default true check (only_row),
    version integer not null,
    made_at timestamptz not null default clock_timestamp()
);

-- Whoever changes the view locks this row first: one at a time, so that nobody meets another half-way, and no two can
-- wait for each other. Renewals do not, so that they never wait for claims.
create table reveille_coordination.turn (
    only_row boolean primary key default true check (only_row)
);
insert into reveille_coordination.turn default values;

-- A session. It ends with its row, which only the turn's holder deletes; or at lease_end, if it is not renewed before.
create table reveille_coordination.member (
    id uuid primary key,
    name text not null,
    address text not null,
    owns boolean not null,
    build text not null,
    joined_at timestamptz not null default clock_timestamp(),
    lease_end timestamptz not null
) with (fillfactor = 50);

create table reveille_coordination.claim (
    name text collate "C" primary key,
    member uuid not null references reveille_coordination.member on delete cascade,
    -- Which of its member's calls made it, or made it again.
    call_number bigint not null
);
create index claim_member on reveille_coordination.claim (member);

create table reveille_coordination.elector (
    name text collate "C" primary key,
    -- Never goes back, so a row is never deleted.
    term bigint not null,
    replica text not null,
    life uuid not null,
    lease_end timestamptz not null
) with (fillfactor = 50);

create table reveille_coordination.replica (
    elector text collate "C" not null,
    replica text collate "C" not null,
    life uuid not null,
    lease_end timestamptz not null,
    primary key (elector, replica, life)
) with (fillfactor = 50);

-- Functions, so that each change is one statement, and no client stands still in the middle of a transaction, holding
-- its locks. Times are clock_timestamp(), which moves on while a lock is waited for, as now() does not.

create function reveille_coordination.millis(at timestamptz) returns bigint
language sql immutable as $$ select floor(extract(epoch from at) * 1000)::bigint $$;

create function reveille_coordination.take_turn() returns void
language plpgsql as $$
begin
    perform 1 from reveille_coordination.turn for update;
end $$;

-- The clock in milliseconds; null if the session has ended.
create function reveille_coordination.join_as(
    asked_id uuid, asked_name text, asked_address text, asked_owns boolean, asked_build text, lease_millis bigint
) returns bigint
language plpgsql as $$
declare
    seen timestamptz;
begin
    perform reveille_coordination.take_turn();
    -- Who ended without leaving, and whose claims nobody wanted.
    delete from reveille_coordination.member as gone
        using (select id from reveille_coordination.member
               where lease_end <= clock_timestamp() and id <> asked_id for update skip locked) as ended
        where gone.id = ended.id;
    seen := clock_timestamp();
    insert into reveille_coordination.member as known (id, name, address, owns, build, lease_end)
        values (asked_id, asked_name, asked_address, asked_owns, asked_build, seen + lease_millis * interval '1 millisecond')
        on conflict (id) do update set lease_end = excluded.lease_end where known.lease_end > clock_timestamp();
    if not found then
        return null;
    end if;
    notify reveille_coordination;
    return reveille_coordination.millis(seen);
end $$;

-- The clock in milliseconds; null if the session has ended.
create function reveille_coordination.renew(asked_id uuid, lease_millis bigint) returns bigint
language plpgsql as $$
declare
    seen timestamptz;
begin
    -- If somebody is ending this session, wait, and look at the clock after that.
    perform 1 from reveille_coordination.member where id = asked_id for no key update;
    seen := clock_timestamp();
    update reveille_coordination.member set lease_end = seen + lease_millis * interval '1 millisecond'
        where id = asked_id and lease_end > seen;
    if not found then
        return null;
    end if;
    return reveille_coordination.millis(seen);
end $$;

create function reveille_coordination.leave(asked_id uuid) returns void
language plpgsql as $$
begin
    perform reveille_coordination.take_turn();
    delete from reveille_coordination.member where id = asked_id;
    if found then
        notify reveille_coordination;
    end if;
end $$;

-- For each name, whether it is the member's now; null if the session has ended.
create function reveille_coordination.claim(asked_id uuid, asked_names text[], asked_call bigint) returns boolean[]
language plpgsql as $$
begin
    perform reveille_coordination.take_turn();
    perform 1 from reveille_coordination.member where id = asked_id and lease_end > clock_timestamp();
    if not found then
        return null;
    end if;
    -- A session that has ended is deleted before any of its claims is given away: a renewal under way either is first,
    -- and then this deletes nothing, or finds no session any more.
    delete from reveille_coordination.member as ended
        where ended.lease_end <= clock_timestamp() and ended.id <> asked_id
        and ended.id in (select member from reveille_coordination.claim where name = any (asked_names));
    update reveille_coordination.claim set call_number = asked_call
        where member = asked_id and name = any (asked_names) and call_number < asked_call;
    insert into reveille_coordination.claim (name, member, call_number)
        select distinct asked.name, asked_id, asked_call from unnest(asked_names) as asked (name)
        on conflict (name) do nothing;
    if found then
        notify reveille_coordination;
    end if;
    return array(
        select coalesce(known.member = asked_id, false)
        from unnest(asked_names) with ordinality as asked (name, place)
        left join reveille_coordination.claim as known on known.name = asked.name collate "C"
        order by asked.place
    );
end $$;

-- Only what was claimed by an earlier call: one that was given up, and arrives late, takes away nothing newer.
create function reveille_coordination.release(asked_id uuid, asked_names text[], asked_call bigint) returns void
language plpgsql as $$
begin
    perform reveille_coordination.take_turn();
    delete from reveille_coordination.claim
        where member = asked_id and name = any (asked_names) and call_number < asked_call;
    if found then
        notify reveille_coordination;
    end if;
end $$;

-- Whether it leads, and the term of whoever does.
create function reveille_coordination.is_leader(
    asked_elector text, asked_replica text, asked_life uuid, lease_millis bigint, out leads boolean, out term bigint
)
language plpgsql as $$
declare
    lease interval := lease_millis * interval '1 millisecond';
begin
    insert into reveille_coordination.replica as known (elector, replica, life, lease_end)
        values (asked_elector, asked_replica, asked_life, clock_timestamp() + lease)
        on conflict (elector, replica, life) do update set lease_end = clock_timestamp() + lease;
    -- The row is locked, and only then are the clock and what it is compared with looked at.
    insert into reveille_coordination.elector as known (name, term, replica, life, lease_end)
        values (asked_elector, 1, asked_replica, asked_life, clock_timestamp() + lease)
        on conflict (name) do update set
            term = known.term + (known.lease_end <= clock_timestamp())::integer,
            replica = excluded.replica, life = excluded.life, lease_end = clock_timestamp() + lease
            where known.lease_end <= clock_timestamp()
            or known.replica = excluded.replica and known.life = excluded.life
        returning known.term into term;
    leads := found;
    if not leads then
        select known.term into term from reveille_coordination.elector as known where known.name = asked_elector;
    else
        delete from reveille_coordination.replica as gone
            using (select elector, replica, life from reveille_coordination.replica
                   where elector = asked_elector and lease_end <= clock_timestamp() for update skip locked) as ended
            where gone.elector = ended.elector and gone.replica = ended.replica and gone.life = ended.life;
    end if;
end $$;

create function reveille_coordination.resign(asked_elector text, asked_replica text, asked_life uuid) returns void
language plpgsql as $$
begin
    update reveille_coordination.elector set lease_end = '-infinity'
        where name = asked_elector and replica = asked_replica and life = asked_life;
    delete from reveille_coordination.replica
        where elector = asked_elector and replica = asked_replica and life = asked_life;
end $$;
