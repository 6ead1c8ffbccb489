-- Stored schedules and bytes of each tenant. Triggers count in the transaction that changes the rows.
--
-- A tenant has up to 64 rows (slots). A transaction locks a slot before it counts, so it never waits for another
-- transaction's count.
create table reveille.usage (
    tenant bigint not null,
    slot smallint not null,
    active bigint not null,
    ended bigint not null,
    cancelled bigint not null,
    bytes bigint not null,
    primary key (tenant, slot)
) with (fillfactor = 50);

-- Bytes of the runs by the UTC day of their nominal instants, because a day's runs are dropped together.
create table reveille.run_usage (
    tenant bigint not null,
    day bigint not null,
    slot smallint not null,
    bytes bigint not null,
    primary key (tenant, day, slot)
) with (fillfactor = 50);
create index run_usage_day on reveille.run_usage (day);

-- Bytes that a row counts in addition to its value: about the size of its other columns and of its index entries.
create function reveille.row_bytes(value bytea) returns bigint
language sql immutable parallel safe
return octet_length(value) + 128;

create function reveille.usage_slot() returns smallint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    first integer := pg_backend_pid() % 64;
begin
    for step in 0..63 loop
        if pg_try_advisory_xact_lock(1383495029, (first + step) % 64) then
            return (first + step) % 64;
        end if;
    end loop;
    perform pg_advisory_xact_lock(1383495029, first);
    return first;
end $$;

create function reveille.add_usage(of_tenant bigint, active bigint, ended bigint, cancelled bigint, bytes bigint)
returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if active <> 0 or ended <> 0 or cancelled <> 0 or bytes <> 0 then
        insert into reveille.usage as u values (of_tenant, reveille.usage_slot(), active, ended, cancelled, bytes)
        on conflict (tenant, slot) do update set active = u.active + excluded.active, ended = u.ended + excluded.ended,
            cancelled = u.cancelled + excluded.cancelled, bytes = u.bytes + excluded.bytes;
    end if;
end $$;

create function reveille.add_run_usage(of_tenant bigint, of_day bigint, bytes bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if bytes <> 0 then
        insert into reveille.run_usage as u values (of_tenant, of_day, reveille.usage_slot(), bytes)
        on conflict (tenant, day, slot) do update set bytes = u.bytes + excluded.bytes;
    end if;
end $$;

create function reveille.count_schedules() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if tg_op = 'INSERT' then
        perform reveille.add_usage(tenant, count(*) filter (where status = 0), count(*) filter (where status = 1),
            count(*) filter (where status = 2), sum(reveille.row_bytes(spec))::bigint)
        from added group by tenant;
    elsif tg_op = 'UPDATE' then
        perform reveille.add_usage(tenant, sum(n * (status = 0)::integer), sum(n * (status = 1)::integer),
            sum(n * (status = 2)::integer), sum(n * reveille.row_bytes(spec))::bigint)
        from (select tenant, status, spec, 1 as n from added union all select tenant, status, spec, -1 from removed) d
        group by tenant;
    else
        perform reveille.add_usage(tenant, -count(*) filter (where status = 0), -count(*) filter (where status = 1),
            -count(*) filter (where status = 2), -sum(reveille.row_bytes(spec))::bigint)
        from removed group by tenant;
    end if;
    return null;
end $$;

create trigger usage_of_inserted after insert on reveille.schedule
    referencing new table as added for each statement execute function reveille.count_schedules();
create trigger usage_of_updated after update on reveille.schedule
    referencing old table as removed new table as added for each statement execute function reveille.count_schedules();
create trigger usage_of_deleted after delete on reveille.schedule
    referencing old table as removed for each statement execute function reveille.count_schedules();

create function reveille.count_runs() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if tg_op = 'INSERT' then
        perform reveille.add_run_usage(tenant, nominal / 86400000, sum(reveille.row_bytes(value))::bigint)
        from added group by tenant, nominal / 86400000;
    elsif tg_op = 'UPDATE' then
        perform reveille.add_run_usage(tenant, nominal / 86400000, sum(n * reveille.row_bytes(value))::bigint)
        from (select tenant, nominal, value, 1 as n from added union all select tenant, nominal, value, -1 from removed) d
        group by tenant, nominal / 86400000;
    else
        perform reveille.add_run_usage(tenant, nominal / 86400000, -sum(reveille.row_bytes(value))::bigint)
        from removed group by tenant, nominal / 86400000;
    end if;
    return null;
end $$;

create trigger usage_of_inserted after insert on reveille.run
    referencing new table as added for each statement execute function reveille.count_runs();
create trigger usage_of_updated after update on reveille.run
    referencing old table as removed new table as added for each statement execute function reveille.count_runs();
create trigger usage_of_deleted after delete on reveille.run
    referencing old table as removed for each statement execute function reveille.count_runs();
-- The housekeeping deletes from this partition by its own name, which fires no trigger of its parent.
create trigger usage_of_deleted_rest after delete on reveille.run_rest
    referencing old table as removed for each statement execute function reveille.count_runs();

insert into reveille.usage
    select tenant, 0, count(*) filter (where status = 0), count(*) filter (where status = 1),
        count(*) filter (where status = 2), sum(reveille.row_bytes(spec))
    from reveille.schedule group by tenant;
insert into reveille.run_usage
    select tenant, nominal / 86400000, 0, sum(reveille.row_bytes(value))
    from reveille.run group by tenant, nominal / 86400000;
drop table reveille.active;
