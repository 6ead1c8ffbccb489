-- Inbox whose entries the owners of their shards move. The functions check a request in the caller's transaction.
--
-- A check takes no lock that another session could wait for. It reads the tables below, which only members write, and
-- its own entries.

-- Settings of the tenants that the functions need. The store writes a row in the same statement as the tenant itself.
-- The operators' tenant has no row, because it has no schedules.
create table reveille.inbox_tenant (
    tenant bigint primary key,
    name text collate "C" not null,
    -- Newest generation of pollers, and its number of pollers.
    generation integer not null,
    pollers integer not null,
    -- Quotas; null if the tenant does not have the quota.
    pending_max bigint,
    stored_mib_max bigint,
    payload_bytes_max bigint,
    horizon_days bigint
);
create index inbox_tenant_name on reveille.inbox_tenant (name);

-- A database role that may write for one tenant only. An operator inserts the rows. A role without a row may write for
-- every tenant.
create table reveille.inbox_role (
    role name primary key,
    tenant text collate "C" not null
);

-- Usage of the tenants with entries in the inbox, which the members publish about once per second. The numbers include
-- the requests in the inbox.
create table reveille.inbox_usage (
    tenant bigint primary key,
    active bigint not null,
    bytes bigint not null,
    published_at timestamptz not null
) with (fillfactor = 50);

alter table reveille.inbox rename to inbox_before;
alter table reveille.inbox_before rename constraint inbox_pkey to inbox_before_pkey;

create table reveille.inbox (
    number bigint generated always as identity primary key,
    tenant bigint not null,
    id text collate "C" not null,
    poller bigint not null,
    shard smallint not null,
    incarnation uuid not null,
    -- Null: the request cancels the schedule.
    spec jsonb,
    -- Bytes that the schedule will count; 0 for a cancellation.
    bytes bigint not null,
    -- Transaction of the request. Number and bytes of the schedules of the tenant that the transaction has requested up
    -- to and including this one.
    written_by xid8 not null default pg_current_xact_id(),
    written_schedules bigint not null,
    written_bytes bigint not null,
    written_at timestamptz not null default clock_timestamp()
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

create index inbox_shard on reveille.inbox (tenant, shard, number);
create index inbox_id on reveille.inbox (tenant, id, number) include (shard);
create index inbox_written on reveille.inbox (tenant, written_by, written_schedules)
    include (bytes, written_bytes) where spec is not null;

-- Requests that the owner of their shard rejected. An operator reads and deletes them. The store deletes old ones.
create table reveille.inbox_dead_letter (
    number bigint primary key,
    tenant text not null,
    id text not null,
    reason text not null,
    spec jsonb,
    written_at timestamptz not null,
    rejected_at timestamptz not null default clock_timestamp()
);
create index inbox_dead_letter_rejected on reveille.inbox_dead_letter (rejected_at);

-- Raises the error of a request. The text begins with the field, and the field is also the error's column.
create function reveille.inbox_reject(field text, problem text, hint text, code text default '22023') returns void
language plpgsql as $$
begin
    raise exception using errcode = code, message = field || ': ' || problem, hint = inbox_reject.hint,
        column = field;
end $$;

-- The 32-bit FNV-1a hash. The shard of a poller is fnv1a and mix of its bytes, as in the crate `domain`.
create function reveille.fnv1a(bytes bytea) returns bigint
language plpgsql immutable parallel safe as $$
declare
    hash bigint := 2166136261;
begin
    for at in 0..length(bytes) - 1 loop
        hash := ((hash # get_byte(bytes, at)) * 16777619) & 4294967295;
    end loop;
    return hash;
end $$;

-- The product of two 32-bit numbers, modulo 2^32.
create function reveille.multiply(a bigint, b bigint) returns bigint
language sql immutable parallel safe
return (a * (b & 65535) + ((a * (b >> 16) & 65535) << 16)) & 4294967295;

create function reveille.mix(hash bigint) returns bigint
language plpgsql immutable parallel safe as $$
begin
    hash := reveille.multiply(hash # (hash >> 16), 2246822507);
    hash := reveille.multiply(hash # (hash >> 13), 3266489909);
    return hash # (hash >> 16);
end $$;

-- The home poller of a schedule.
create function reveille.poller_of(tenant bigint, generation integer, pollers integer, id text) returns bigint
language sql immutable parallel safe
return (tenant << 32) | (generation::bigint << 16) | (reveille.mix(reveille.fnv1a(convert_to(id, 'UTF8'))) % pollers);

create function reveille.shard_of(poller bigint) returns smallint
language sql immutable parallel safe
return (reveille.mix(reveille.fnv1a(int8send(poller))) % 256)::smallint;

-- Active schedules and stored bytes of the tenants, including the requests in the inbox. Leaves out the requests of the
-- caller's own transaction.
create function reveille.count_usage(of_tenants bigint[])
returns table (tenant bigint, active bigint, bytes bigint)
language sql stable as $$
    select t.tenant, coalesce(sum(c.active), 0)::bigint, coalesce(sum(c.bytes), 0)::bigint
    from unnest(of_tenants) as t (tenant)
    cross join lateral (
        select u.active, u.bytes from reveille.usage u where u.tenant = t.tenant
        union all
        select 0, r.bytes from reveille.run_usage r where r.tenant = t.tenant
        union all
        select count(*), sum(i.bytes) from reveille.inbox i
        where i.tenant = t.tenant and i.spec is not null and i.written_by < pg_current_xact_id()
        union all
        select count(*), sum(i.bytes) from reveille.inbox i
        where i.tenant = t.tenant and i.spec is not null and i.written_by > pg_current_xact_id()
    ) c group by t.tenant
$$;

-- The tenant with this name, if the session's role may write for it.
create function reveille.inbox_tenant_named(named text) returns reveille.inbox_tenant
language plpgsql stable as $$
declare
    known reveille.inbox_tenant;
    bound text;
begin
    select r.tenant into bound from reveille.inbox_role r where r.role = session_user;
    if bound <> named then
        perform reveille.inbox_reject('tenant',
            format('the role %s may write only for the tenant %s', session_user, bound),
            'connect as a role of the other tenant', '42501');
    end if;
    select t.* into known from reveille.inbox_tenant t where t.name = named order by t.tenant limit 1;
    if known.tenant is null then
        perform reveille.inbox_reject('tenant',
            format('no tenant has the name %s', coalesce(quote_literal(named), 'null')),
            'pass the name of an existing tenant', '42704');
    end if;
    return known;
end $$;

create function reveille.inbox_check_id(id text) returns void
language plpgsql immutable as $$
begin
    if id is null or id !~ '^[A-Za-z0-9_-]{1,128}$' then
        perform reveille.inbox_reject('id', 'an id consists of 1 to 128 characters of A-Z, a-z, 0-9, _ and -',
            'choose another id');
    end if;
end $$;

-- The part of a JSON pointer (RFC 6901) for a name, of which it contains at most 64 characters.
create function reveille.inbox_token(name text) returns text
language sql immutable
return replace(replace(left(name, 64), '~', '~0'), '/', '~1');

-- Checks that a value is an object whose fields have known names. A null stands for a missing field.
create function reveille.inbox_check_object(pointer text, value jsonb, known text[]) returns void
language plpgsql immutable as $$
declare
    field text;
begin
    if value is null or jsonb_typeof(value) = 'null' then
        return;
    end if;
    if jsonb_typeof(value) <> 'object' then
        perform reveille.inbox_reject(pointer, format('expected an object, but found %s', jsonb_typeof(value)),
            'write the fields of docs/http-api.md');
    end if;
    if known is not null then
        select key into field from jsonb_object_keys(value) as key where key <> all (known) limit 1;
        if field is not null then
            perform reveille.inbox_reject(pointer || '/' || reveille.inbox_token(field), 'the field is unknown',
                format('the known fields are %s', array_to_string(known, ', ')));
        end if;
    end if;
end $$;

-- A text field of an object. Returns null for a missing field.
create function reveille.inbox_text(pointer text, value jsonb, bytes_max integer) returns text
language plpgsql immutable as $$
declare
    found text := value #>> '{}';
begin
    if found is not null and jsonb_typeof(value) <> 'string' then
        perform reveille.inbox_reject(pointer, format('expected a string, but found %s', jsonb_typeof(value)),
            'put the value in quotation marks');
    end if;
    if octet_length(found) > bytes_max then
        perform reveille.inbox_reject(pointer,
            format('the value has %s bytes, more than the limit of %s', octet_length(found), bytes_max),
            'shorten the value', '54000');
    end if;
    return found;
end $$;

create function reveille.inbox_check_at(at text, of_tenant reveille.inbox_tenant) returns void
language plpgsql stable as $$
declare
    form constant text := '^\d{4}-\d\d-\d\d[Tt]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d{1,9})?'
        || '([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)$';
    example constant text := 'write RFC 3339 with an offset, such as 2030-01-02T03:04:05Z';
    instant timestamptz;
begin
    if at !~ form then
        perform reveille.inbox_reject('/at', 'the value is not an instant in the format of RFC 3339', example);
    end if;
    begin
        -- PostgreSQL accepts only offsets of less than 16 hours, so the offset is subtracted.
        instant := (left(at, 10) || ' ' || substr(at, 12, 8) || '+00')::timestamptz;
        if right(at, 1) not in ('Z', 'z') then
            instant := instant - (left(right(at, 6), 1) || right(at, 5))::interval;
        end if;
    exception
        when datetime_field_overflow or invalid_datetime_format then
            perform reveille.inbox_reject('/at', 'the instant does not exist', example);
    end;
    if instant < '1970-01-01 00:00:00+00' then
        perform reveille.inbox_reject('/at', format('%s is before 1970', at), 'write an instant after 1970', '22008');
    end if;
    if instant > clock_timestamp() + interval '316224000 s' then
        perform reveille.inbox_reject('/at', format('%s is too far in the future; the maximum delay is 3660d', at),
            'write an earlier instant', '22008');
    end if;
    if instant > clock_timestamp() + least(of_tenant.horizon_days, 36600) * interval '86400 s' then
        perform reveille.inbox_reject('/at',
            format('%s is beyond the quota horizon_days of %s', at, of_tenant.horizon_days),
            'stay within the quota, or ask an admin to raise it with PATCH /v1/quotas', '53400');
    end if;
end $$;

-- Checks the parts of a spec that SQL can judge, and returns the number of bytes that the schedule will count. The
-- owner of the shard judges the cron expression, the zone, the durations, the URL and the egress policy.
create function reveille.inbox_check_spec(spec jsonb, of_tenant reveille.inbox_tenant) returns bigint
language plpgsql stable as $$
declare
    http jsonb := spec #> '{target,http}';
    labels jsonb := spec -> 'labels';
    timings integer;
    payload_bytes bigint;
    attempts numeric;
    label record;
begin
    if spec is null or jsonb_typeof(spec) <> 'object' then
        perform reveille.inbox_reject('spec', 'the spec is not a JSON object',
            'pass the body of POST /v1/schedules without an id');
    end if;
    if octet_length(spec::text) > 131072 then
        perform reveille.inbox_reject('spec', 'the spec has more than 128 KiB', 'send a reference to larger data',
            '54000');
    end if;
    if spec ? 'id' then
        perform reveille.inbox_reject('/id', 'the function has an argument for the id', 'leave the field out');
    end if;
    perform reveille.inbox_check_object('', spec,
        '{at,cron,every,zone,target,payload,labels,retry}');
    perform reveille.inbox_check_object('/target', spec -> 'target', '{http}');
    perform reveille.inbox_check_object('/target/http', http, '{url,method,headers,timeout}');
    perform reveille.inbox_check_object('/labels', labels, null);
    perform reveille.inbox_check_object('/retry', spec -> 'retry', '{attempts_max,backoff,backoff_max}');

    if reveille.inbox_text('/at', spec -> 'at', 64) is not null then
        perform reveille.inbox_check_at(spec ->> 'at', of_tenant);
    end if;
    perform reveille.inbox_text('/cron', spec -> 'cron', 256), reveille.inbox_text('/zone', spec -> 'zone', 64),
        reveille.inbox_text('/every', spec -> 'every', 64),
        reveille.inbox_text('/target/http/timeout', http -> 'timeout', 64),
        reveille.inbox_text('/retry/backoff', spec #> '{retry,backoff}', 64),
        reveille.inbox_text('/retry/backoff_max', spec #> '{retry,backoff_max}', 64);
    timings := num_nonnulls(spec ->> 'at', spec ->> 'cron', spec ->> 'every');
    if timings = 0 then
        perform reveille.inbox_reject('/at', 'one of at, cron and every is required',
            'add "at": "2030-01-02T03:04:05Z", for example');
    elsif timings > 1 then
        perform reveille.inbox_reject('/at', 'at, cron and every exclude each other', 'keep one of these fields');
    elsif spec ->> 'zone' is not null and spec ->> 'cron' is null then
        perform reveille.inbox_reject('/zone', 'a zone requires a cron expression', 'leave the zone out');
    end if;

    if reveille.inbox_text('/target/http/url', http -> 'url', 2048) is null then
        perform reveille.inbox_reject('/target/http/url', 'the field is required', 'add the URL of the callback');
    end if;
    perform reveille.inbox_text('/target/http/method', http -> 'method', 32);
    if http -> 'headers' not in ('null', '{}') then
        -- The database and its write-ahead log would contain the values of the headers in plain text.
        perform reveille.inbox_reject('/target/http/headers', 'a request in SQL cannot contain headers',
            'create a schedule with headers over HTTP, which encrypts their values', '0A000');
    end if;

    payload_bytes := coalesce(octet_length((spec -> 'payload')::text), 0);
    if payload_bytes > 65536 then
        perform reveille.inbox_reject('/payload',
            format('the payload has %s bytes, more than the limit of 65536', payload_bytes),
            'send a reference to larger data', '54000');
    end if;
    if payload_bytes > of_tenant.payload_bytes_max then
        perform reveille.inbox_reject('/payload',
            format('the payload has %s bytes, more than the quota payload_bytes_max of %s', payload_bytes,
                of_tenant.payload_bytes_max),
            'stay within the quota, or ask an admin to raise it with PATCH /v1/quotas', '53400');
    end if;

    if labels not in ('null', '{}') then
        for label in select key, value, row_number() over () as number from jsonb_each(labels) loop
            if label.number > 16 then
                perform reveille.inbox_reject('/labels', 'the schedule has more labels than the limit of 16',
                    'leave labels out', '54000');
            end if;
            if octet_length(label.key) > 256 then
                perform reveille.inbox_reject('/labels', 'the name of a label has more than 256 bytes',
                    'shorten the name', '54000');
            end if;
            if reveille.inbox_text('/labels/' || reveille.inbox_token(label.key), label.value, 256) is null then
                perform reveille.inbox_reject('/labels', 'the value of a label is null', 'write a string');
            end if;
        end loop;
    end if;

    if jsonb_typeof(spec #> '{retry,attempts_max}') <> 'null' then
        if jsonb_typeof(spec #> '{retry,attempts_max}') <> 'number' then
            perform reveille.inbox_reject('/retry/attempts_max',
                format('expected a number, but found %s', jsonb_typeof(spec #> '{retry,attempts_max}')),
                'write a whole number');
        end if;
        attempts := (spec #>> '{retry,attempts_max}')::numeric;
        if scale(attempts) > 0 or attempts not between 1 and 20 then
            perform reveille.inbox_reject('/retry/attempts_max',
                format('attempts_max is %s, but must be a whole number from 1 to 20', attempts),
                'write a number in this range');
        end if;
    end if;

    -- The bytes of a row's other columns and of its index entries are about 256.
    return payload_bytes + octet_length(http ->> 'url') + coalesce(octet_length(labels::text), 0) + 256;
end $$;

-- Checks the quotas of stored schedules. `own_schedules` and `own_bytes` are the totals of the tenant's schedules that
-- the caller's transaction has requested before.
create function reveille.inbox_check_quotas(
    of_tenant reveille.inbox_tenant, new_bytes bigint, own_schedules bigint, own_bytes bigint
) returns void
language plpgsql stable as $$
declare
    used_active bigint;
    used_bytes bigint;
begin
    if of_tenant.pending_max is null and of_tenant.stored_mib_max is null then
        return;
    end if;
    -- Members publish the usage while the tenant has entries in the inbox. Without a recent publication, this function
    -- counts.
    select u.active, u.bytes into used_active, used_bytes from reveille.inbox_usage u
    where u.tenant = of_tenant.tenant and u.published_at > clock_timestamp() - interval '5 s';
    if used_active is null then
        select u.active, u.bytes into used_active, used_bytes from reveille.count_usage(array[of_tenant.tenant]) u;
    end if;
    if used_active + own_schedules >= of_tenant.pending_max then
        perform reveille.inbox_reject('pending_max',
            format('the tenant has %s active and requested schedules, which is its quota', used_active + own_schedules),
            'wait until some schedules have fired, cancel some, or ask an admin to raise the quota with '
            'PATCH /v1/quotas', '53400');
    end if;
    if used_bytes + own_bytes + new_bytes > of_tenant.stored_mib_max * 1048576 then
        perform reveille.inbox_reject('stored_mib_max',
            format('the tenant has reached its quota of %s MiB', of_tenant.stored_mib_max),
            'send smaller payloads, or ask an admin to raise the quota with PATCH /v1/quotas', '53400');
    end if;
end $$;

drop function reveille.append(text, text, jsonb);

create function reveille.inbox_append(of_tenant reveille.inbox_tenant, id text, spec jsonb) returns void
language plpgsql as $$
declare
    millis bigint := (extract(epoch from clock_timestamp()) * 1000)::bigint;
    random text := replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '');
    poller bigint := reveille.poller_of(of_tenant.tenant, of_tenant.generation, of_tenant.pollers, id);
    own_schedules bigint := 0;
    own_bytes bigint := 0;
    new_bytes bigint := 0;
begin
    if spec is not null then
        new_bytes := reveille.inbox_check_spec(spec, of_tenant);
        select i.written_schedules, i.written_bytes into own_schedules, own_bytes from reveille.inbox i
        where i.tenant = of_tenant.tenant and i.written_by = pg_current_xact_id() and i.spec is not null
        order by i.written_schedules desc limit 1;
        own_schedules := coalesce(own_schedules, 0);
        own_bytes := coalesce(own_bytes, 0);
        perform reveille.inbox_check_quotas(of_tenant, new_bytes, own_schedules, own_bytes);
    end if;
    insert into reveille.inbox (tenant, id, poller, shard, incarnation, spec, bytes, written_schedules, written_bytes)
    values (of_tenant.tenant, id, poller, reveille.shard_of(poller),
        (lpad(to_hex(millis), 12, '0') || substr(random, 17, 20))::uuid, spec, new_bytes,
        own_schedules + (spec is not null)::integer, own_bytes + new_bytes);
end $$;

-- Requests a schedule. If the id is null, the function generates an id. Returns the schedule's id.
create or replace function reveille.schedule(tenant text, id text, spec jsonb) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    of_tenant reveille.inbox_tenant := reveille.inbox_tenant_named(tenant);
begin
    id := coalesce(id, 'q' || replace(gen_random_uuid()::text, '-', ''));
    perform reveille.inbox_check_id(id);
    if spec is null then
        perform reveille.inbox_reject('spec', 'the spec is null', 'pass the body of POST /v1/schedules without an id');
    end if;
    perform reveille.inbox_append(of_tenant, id, spec);
    return id;
end $$;

-- Requests the cancellation of a schedule.
create or replace function reveille.cancel(tenant text, id text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    of_tenant reveille.inbox_tenant := reveille.inbox_tenant_named(tenant);
begin
    perform reveille.inbox_check_id(id);
    perform reveille.inbox_append(of_tenant, id, null);
end $$;

-- Publishes the usage of the tenants that have entries in the inbox, unless a member has just published it. Finds the
-- tenants by an index.
create function reveille.publish_usage() returns void
language plpgsql as $$
begin
    if pg_try_advisory_xact_lock(1383495030, 0) then
        insert into reveille.inbox_usage as p (tenant, active, bytes, published_at)
        select u.tenant, u.active, u.bytes, clock_timestamp()
        from reveille.count_usage(array(
            with recursive waiting (tenant) as (
                (select i.tenant from reveille.inbox i order by i.tenant limit 1)
                union all
                select (select i.tenant from reveille.inbox i where i.tenant > w.tenant order by i.tenant limit 1)
                from waiting w where w.tenant is not null
            )
            select w.tenant from waiting w where w.tenant is not null and not exists (
                select from reveille.inbox_usage p
                where p.tenant = w.tenant and p.published_at > clock_timestamp() - interval '500 ms')
        )) u
        on conflict (tenant) do update
            set active = excluded.active, bytes = excluded.bytes, published_at = excluded.published_at;
    end if;
end $$;

revoke all on function
    reveille.inbox_reject(text, text, text, text), reveille.fnv1a(bytea), reveille.multiply(bigint, bigint),
    reveille.mix(bigint), reveille.poller_of(bigint, integer, integer, text), reveille.shard_of(bigint),
    reveille.count_usage(bigint[]), reveille.inbox_tenant_named(text), reveille.inbox_check_id(text),
    reveille.inbox_token(text), reveille.inbox_check_object(text, jsonb, text[]),
    reveille.inbox_text(text, jsonb, integer),
    reveille.inbox_check_at(text, reveille.inbox_tenant), reveille.inbox_check_spec(jsonb, reveille.inbox_tenant),
    reveille.inbox_check_quotas(reveille.inbox_tenant, bigint, bigint, bigint),
    reveille.inbox_append(reveille.inbox_tenant, text, jsonb), reveille.publish_usage()
from public;
