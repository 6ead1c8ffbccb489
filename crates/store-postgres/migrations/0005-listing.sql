-- What a tenant's schedules are listed by, in the order of their incarnations. Those whose ids another has taken are in no list.
create index schedule_listed on reveille.schedule (tenant, status, incarnation) where is_current;

-- The hash of each label; null if there are none, which costs a schedule without labels nothing. What is there already gets
-- its hashes from whoever migrates, as no function here reads a spec.
alter table reveille.schedule add column labels bigint[];

create table reveille.schedule_label (
    tenant bigint not null,
    label bigint not null,
    incarnation uuid not null,
    primary key (tenant, label, incarnation)
);

-- Kept with the column, whoever writes it.
create function reveille.keep_labels() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if tg_op <> 'INSERT' then
        delete from reveille.schedule_label
        where tenant = old.tenant and label = any(old.labels) and incarnation = old.incarnation
            and (tg_op = 'DELETE' or new.labels is null or not label = any(new.labels));
    end if;
    if tg_op <> 'DELETE' then
        insert into reveille.schedule_label
        select new.tenant, label, new.incarnation from unnest(new.labels) as label
        on conflict do nothing;
    end if;
    return null;
end $$;

create trigger labels_made after insert on reveille.schedule
    for each row when (new.labels is not null) execute function reveille.keep_labels();
create trigger labels_changed after update of labels on reveille.schedule
    for each row when (old.labels is distinct from new.labels) execute function reveille.keep_labels();
create trigger labels_gone after delete on reveille.schedule
    for each row when (old.labels is not null) execute function reveille.keep_labels();

-- As for the table that they are about.
alter table reveille.schedule_label set (autovacuum_vacuum_scale_factor = 0.02);
