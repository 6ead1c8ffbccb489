-- History that can go: runs are in partitions of a day by their nominal instant, and schedules say since when they are over.

-- When the record was last written, by its writer's clock. Ended long ago and all of it written long ago are not the same: a run
-- can be late, or tried again.
alter table reveille.run add column written_at bigint;
update reveille.run set written_at = (extract(epoch from now()) * 1000)::bigint;

alter table reveille.run rename to run_before;
alter table reveille.run_before rename constraint run_pkey to run_before_pkey;
drop index reveille.run_dead;

create table reveille.run (
    incarnation uuid not null,
    nominal bigint not null,
    version bigint not null,
    tenant bigint not null,
    state smallint not null,
    is_redriven boolean not null default false,
    value bytea not null,
    written_at bigint not null,
    primary key (incarnation, nominal, version)
) partition by range (nominal);

create index run_dead on reveille.run (tenant, incarnation, nominal, version) where state = 2 and not is_redriven;
-- Runs that have a retry to come: a day that has one is kept.
create index run_open on reveille.run (nominal) where state = 0;
-- Whether anything of a day was written lately, for nearly nothing per write.
create index run_written on reveille.run using brin (written_at) with (pages_per_range = 32, autosummarize = on);

do $$
declare
    day bigint;
begin
    for day in select distinct floor(nominal / 86400000.0)::bigint from reveille.run_before order by 1 loop
        execute format(
            'create table reveille.%I partition of reveille.run for values from (%s) to (%s)',
            'run_' || to_char(to_timestamp(day * 86400) at time zone 'UTC', 'YYYY_MM_DD'), day * 86400000, (day + 1) * 86400000);
    end loop;
end $$;
insert into reveille.run (incarnation, nominal, version, tenant, state, is_redriven, value, written_at)
    select incarnation, nominal, version, tenant, state, is_redriven, value, written_at from reveille.run_before;
drop table reveille.run_before;

-- Null while it is active; by the clock of the owner that ended or cancelled it.
alter table reveille.schedule add column ended_at bigint;
update reveille.schedule set ended_at = (extract(epoch from now()) * 1000)::bigint where status <> 0;
create index schedule_ended on reveille.schedule (ended_at, incarnation) where ended_at is not null;

-- Rows that are later than their instant: retries, and what was put off for a slow target. Their schedule may be over by then.
create index due_near_late on reveille.due_near (incarnation) where position > nominal;
create index due_far_late on reveille.due_far (incarnation) where position > nominal;
