-- How many schedules of each tenant are active, in several rows of which each writer changes one of its own: whoever changes a
-- schedule's status counts in the same transaction, and nobody waits for another's count.
create table reveille.active (
    tenant bigint not null,
    slot smallint not null,
    schedules bigint not null,
    primary key (tenant, slot)
) with (fillfactor = 50);

insert into reveille.active (tenant, slot, schedules)
    select tenant, 0, count(*) from reveille.schedule where status = 0 group by tenant;
