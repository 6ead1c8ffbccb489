-- Epochs of the terms, and the identity of the database.
--
-- The high bits of a term are the epoch (crates/domain/src/id.rs). A database that returned to an earlier state may have
-- lost terms. An epoch that starts afterwards is higher than the epochs of all lost terms, because it is a time.
--
-- Each start of an epoch records the identity. A dump that an operator restored has another system identifier, or other
-- object ids. A standby that was promoted, and a recovery to a point in time, have another timeline.
alter table reveille.meta
    add column epoch bigint not null default 0,
    add column database_id text not null default '',
    add column timeline integer not null default 0;

-- The system identifier of the server, the object id of the database, and the object id of the table `meta`.
create function reveille.database_id() returns text
language sql stable set search_path = pg_catalog, pg_temp
begin atomic
    select concat_ws('/', (select system_identifier from pg_control_system()),
        (select oid from pg_database where datname = current_database()),
        (select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
            where n.nspname = 'reveille' and c.relname = 'meta'));
end;

-- The first eight digits of the name of a WAL file are the timeline.
create function reveille.timeline() returns integer
language sql volatile set search_path = pg_catalog, pg_temp
begin atomic
    select ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer;
end;

-- Starts an epoch above the epoch `earlier`, unless another session has started an epoch after `seen`. From the commit on,
-- every write of an owner with an earlier term is rejected.
create function reveille.start_epoch(seen bigint, earlier bigint, out newest bigint, out is_started boolean)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    perform from reveille.meta m where m.epoch = seen for update;
    is_started := found;
    if not is_started then
        select m.epoch into newest from reveille.meta m;
        return;
    end if;
    perform from reveille.shard s order by s.shard for update;
    newest := greatest(floor(extract(epoch from clock_timestamp()))::bigint, seen + 1, earlier + 1,
        (select max(s.term) >> 20 from reveille.shard s) + 1);
    update reveille.meta set epoch = newest, database_id = reveille.database_id(), timeline = reveille.timeline();
    update reveille.shard set term = newest << 20;
    -- A member may still have numbers of entries and records that the database lost. No entry gets such a number again.
    perform setval(numbers, nextval(numbers) + 4294967296) from (values
        (pg_get_serial_sequence('reveille.inbox', 'number')::regclass),
        (pg_get_serial_sequence('reveille.mark', 'number')::regclass)) as s (numbers);
end $$;

revoke all on function reveille.database_id(), reveille.timeline(), reveille.start_epoch(bigint, bigint) from public;
