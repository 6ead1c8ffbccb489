-- History that can go: runs are in partitions of a day by their nominal instant, and schedules say since when they are over.
-- Nothing is copied: the runs of before stay together until all of them can go.

-- When the record was last written, by its writer's clock. Over for long and written long ago are not the same: a run can be
-- late, or tried again. As long ago as now for those that are there.
alter table reveille.run add column written_at bigint not null default (extract(epoch from now()) * 1000)::bigint;
alter table reveille.run rename to run_before;
alter table reveille.run_before rename constraint run_pkey to run_before_pkey;
alter index reveille.run_dead rename to run_before_dead;

create table reveille.run (
    incarnation uuid not null,
    nominal bigint not null,
    version bigint not null,
    tenant bigint not null,
    state smallint not null,
    is_redriven boolean not null default false,
    value bytea not null,
    written_at bigint not null default (extract(epoch from now()) * 1000)::bigint,
    primary key (incarnation, nominal, version)
) partition by range (nominal);

create index run_dead on reveille.run (tenant, incarnation, nominal, version) where state = 2 and not is_redriven;
-- Runs that have a retry to come: a day that has one is kept.
create index run_open on reveille.run (nominal) where state = 0;
-- Whether anything of a day was written lately, for nearly nothing per write.
create index run_written on reveille.run using brin (written_at) with (pages_per_range = 32, autosummarize = on);

do $$
begin
    if exists (select from reveille.run_before) then
        execute format(
            'alter table reveille.run attach partition reveille.run_before for values from (minvalue) to (%s)',
            (floor(extract(epoch from now()) / 86400) + 2)::bigint * 86400000);
    else
        drop table reveille.run_before;
    end if;
end $$;

-- Runs of days that have no partition: of long ago, mostly. Their rows are deleted.
create table reveille.run_rest partition of reveille.run default;
create index run_rest_nominal on reveille.run_rest (nominal);
create index run_rest_over on reveille.run_rest (written_at) where state <> 0;

-- Of one that is not active: since when, by the clock of the owner that ended or cancelled it; as of now for those that are
-- over already.
alter table reveille.schedule add column ended_at bigint default (extract(epoch from now()) * 1000)::bigint;
alter table reveille.schedule alter column ended_at drop default;
create index schedule_over on reveille.schedule (ended_at, incarnation) where status <> 0;
-- What is deleted is made room of before there is much of it.
alter table reveille.schedule set (autovacuum_vacuum_scale_factor = 0.02);
alter table reveille.asked set (autovacuum_vacuum_scale_factor = 0.02);
alter table reveille.run_rest set (autovacuum_vacuum_scale_factor = 0.02);

-- The id of the place where the members meet, which the first of them tells.
alter table reveille.meta add column coordination text;

-- Rows that are later than their instant: retries, and what was put off. Their schedule may be over by then.
create index due_near_late on reveille.due_near (incarnation) where position > nominal;
create index due_far_late on reveille.due_far (incarnation) where position > nominal;
