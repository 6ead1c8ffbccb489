-- Counts of the final runs of a tenant by facet and hour. The transaction that writes final runs also writes their
-- counts.
--
-- Each server process of the database has rows of its own: the column `slot` is the process id. A process has at most
-- one transaction at a time, so no transaction waits for the counts of another one. A reader adds up the rows. The
-- leader merges the rows of past hours into one row with the slot 0.
create table reveille.run_count (
    tenant bigint not null,
    -- 0: all runs; 1: by host; 2: by label.
    facet smallint not null,
    -- Hour of the nominal instants, in hours since 1970.
    hour bigint not null,
    slot integer not null,
    value bytea not null,
    primary key (tenant, facet, hour, slot)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
create index run_count_unmerged on reveille.run_count (hour, tenant, facet) where slot <> 0;

create function reveille.count_counts() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if tg_op = 'INSERT' then
        perform reveille.add_usage(tenant, 0, 0, 0, sum(reveille.row_bytes(value))::bigint)
        from added group by tenant;
    elsif tg_op = 'UPDATE' then
        perform reveille.add_usage(tenant, 0, 0, 0, sum(n * reveille.row_bytes(value))::bigint)
        from (select tenant, value, 1 as n from added union all select tenant, value, -1 from removed) d
        group by tenant;
    else
        perform reveille.add_usage(tenant, 0, 0, 0, -sum(reveille.row_bytes(value))::bigint)
        from removed group by tenant;
    end if;
    return null;
end $$;

create trigger usage_of_inserted after insert on reveille.run_count
    referencing new table as added for each statement execute function reveille.count_counts();
create trigger usage_of_updated after update on reveille.run_count
    referencing old table as removed new table as added for each statement execute function reveille.count_counts();
create trigger usage_of_deleted after delete on reveille.run_count
    referencing old table as removed for each statement execute function reveille.count_counts();

-- Last instant, by the clock of the database and to within a minute, at which a member of an earlier build wrote runs
-- without counts. 0 if there was none.
create table reveille.run_counting (
    only_row boolean primary key default true check (only_row),
    uncounted_at bigint not null
);

-- Number of merges of counts. A reader whose statements find different numbers reads the last hour again.
create table reveille.run_merging (
    only_row boolean primary key default true check (only_row),
    merges bigint not null
);
insert into reveille.run_merging (merges) values (0);

-- Members of this build set the parameter in each transaction that writes runs. Members of an earlier build do not.
create function reveille.note_uncounted() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    now_millis bigint;
begin
    if current_setting('reveille.counts_runs', true) is distinct from 'on' then
        now_millis := (extract(epoch from clock_timestamp()) * 1000)::bigint;
        update reveille.run_counting set uncounted_at = now_millis where uncounted_at < now_millis - 60000;
    end if;
    return null;
end $$;

create trigger counted after insert on reveille.run
    for each statement execute function reveille.note_uncounted();

-- The trigger exists before this statement, so a member of an earlier build that writes runs now is noticed.
insert into reveille.run_counting (uncounted_at)
    select case when exists (select from reveille.run)
        then (extract(epoch from clock_timestamp()) * 1000)::bigint else 0 end;
