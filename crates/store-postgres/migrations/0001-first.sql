-- Everything that is Reveille's in this database. Instants are milliseconds since 1970; a poller is
-- tenant << 32 | generation << 16 | number; a version is revision << 16 | replay; a try is attempt << 32 | target.

create schema reveille;

create table reveille.meta (
    only_row boolean primary key default true check (only_row),
    version integer not null,
    cluster uuid not null default gen_random_uuid(),
    -- What members know each other by: 244 random bits.
    peer_secret bytea not null default uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()),
    made_at timestamptz not null default now()
);

create table reveille.tenant (
    tenant bigint primary key,
    value bytea not null
);

-- Who owns: every write of an owner locks its shards' rows FOR SHARE and compares terms; taking a shard updates its row.
create table reveille.shard (
    shard smallint primary key,
    term bigint not null default 0,
    handed_over bytea
) with (fillfactor = 50);

insert into reveille.shard (shard) select generate_series(0, 255);

create table reveille.schedule (
    incarnation uuid primary key,
    tenant bigint not null,
    poller bigint not null,
    -- Null if it was made from the incarnation.
    id text collate "C",
    -- It has its id; false once another has taken it.
    is_current boolean not null,
    revision bigint not null,
    status smallint not null,
    created_at bigint not null,
    updated_at bigint not null,
    next bigint,
    spec bytea not null
) with (fillfactor = 75);

create unique index schedule_name on reveille.schedule (tenant, id) where is_current and id is not null;

-- Incarnations that puts came with and had no need of: a put that is tried again is known by its own.
create table reveille.asked (
    incarnation uuid primary key
);

create table reveille.run (
    incarnation uuid not null,
    nominal bigint not null,
    version bigint not null,
    tenant bigint not null,
    state smallint not null,
    is_redriven boolean not null default false,
    value bytea not null,
    primary key (incarnation, nominal, version)
);

create index run_dead on reveille.run (tenant, incarnation, nominal, version) where state = 2 and not is_redriven;

create table reveille.position (
    poller bigint primary key,
    closed bigint not null,
    done bigint not null
) with (fillfactor = 50);

-- Due rows are not deleted one by one: whole partitions are dropped once every poller is done with them. Rows for the days
-- to come are in partitions of a day, those for later in wide ones; which is decided when a row is written, so one row may be in both.
-- written_by is the transaction of a creator, and null for an owner's own rows: arrivals are read by it.
create table reveille.due_near (
    poller bigint not null,
    position bigint not null,
    incarnation uuid not null,
    nominal bigint not null,
    version bigint not null,
    try bigint not null,
    shard smallint not null,
    written_by xid8,
    primary key (poller, position, incarnation, nominal, version, try)
) partition by range (position);

create table reveille.due_far (
    poller bigint not null,
    position bigint not null,
    incarnation uuid not null,
    nominal bigint not null,
    version bigint not null,
    try bigint not null,
    shard smallint not null,
    written_by xid8,
    primary key (poller, position, incarnation, nominal, version, try)
) partition by range (position);

create index due_near_arrival on reveille.due_near (written_by, shard) where written_by is not null;
create index due_far_arrival on reveille.due_far (written_by, shard) where written_by is not null;

create table reveille.mark (
    number bigint generated always as identity primary key,
    shard smallint not null,
    incarnation uuid not null
);

create index mark_shard on reveille.mark (shard, number);

-- Schedules asked for inside somebody's own transaction. A member reads what is committed here, makes it by the ordinary way,
-- and deletes it. The incarnation is drawn with the entry, so that an entry that is moved twice makes one schedule.
create table reveille.inbox (
    number bigint generated always as identity primary key,
    tenant text not null,
    id text not null,
    incarnation uuid not null,
    -- Null: the schedule is to be cancelled.
    spec jsonb,
    written_at timestamptz not null default clock_timestamp()
);

create function reveille.append(tenant text, id text, spec jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    millis bigint := (extract(epoch from clock_timestamp()) * 1000)::bigint;
    chance text := replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '');
begin
    if tenant is null or tenant !~ '^[A-Za-z0-9_-]{1,128}$' then
        raise exception 'a tenant''s name is made of A-Z, a-z, 0-9, _ and -, 1 to 128 of them' using errcode = '22023';
    end if;
    if id !~ '^[A-Za-z0-9_-]{1,128}$' then
        raise exception 'an id is made of A-Z, a-z, 0-9, _ and -, 1 to 128 of them' using errcode = '22023';
    end if;
    insert into reveille.inbox (tenant, id, incarnation, spec) values
        (tenant, id, (lpad(to_hex(millis), 12, '0') || substr(chance, 17, 20))::uuid, spec);
end $$;

-- Without an id, one is made. The answer is the schedule's id.
create function reveille.schedule(tenant text, id text, spec jsonb) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if spec is null or jsonb_typeof(spec) <> 'object' then
        raise exception 'what to schedule is a JSON object, as POST /v1/schedules takes it' using errcode = '22023';
    end if;
    if octet_length(spec::text) > 131072 then
        raise exception 'what to schedule has more than 128 KiB' using errcode = '54000';
    end if;
    id := coalesce(id, 'q' || replace(gen_random_uuid()::text, '-', ''));
    perform reveille.append(tenant, id, spec);
    return id;
end $$;

create function reveille.cancel(tenant text, id text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if id is null then
        raise exception 'which schedule to cancel is not said' using errcode = '22023';
    end if;
    perform reveille.append(tenant, id, null);
end $$;

revoke all on function reveille.append(text, text, jsonb), reveille.schedule(text, text, jsonb),
    reveille.cancel(text, text) from public;
