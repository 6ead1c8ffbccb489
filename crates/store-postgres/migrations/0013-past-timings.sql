-- Timings of the revisions that changes and cancellations of schedules ended. The housekeeping deletes old rows.
create table reveille.past_timing (
    incarnation uuid not null,
    revision bigint not null,
    tenant bigint not null,
    value bytea not null,
    -- Instant at which the revision ended, by the clock of the member that ended it.
    written_at bigint not null,
    primary key (incarnation, revision)
);
create index past_timing_over on reveille.past_timing (written_at);
alter table reveille.past_timing set (autovacuum_vacuum_scale_factor = 0.02);

create function reveille.count_past_timings() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if tg_op = 'INSERT' then
        perform reveille.add_usage(tenant, 0, 0, 0, sum(reveille.row_bytes(value))::bigint)
        from added group by tenant;
    else
        perform reveille.add_usage(tenant, 0, 0, 0, -sum(reveille.row_bytes(value))::bigint)
        from removed group by tenant;
    end if;
    return null;
end $$;

create trigger usage_of_inserted after insert on reveille.past_timing
    referencing new table as added for each statement execute function reveille.count_past_timings();
create trigger usage_of_deleted after delete on reveille.past_timing
    referencing old table as removed for each statement execute function reveille.count_past_timings();
