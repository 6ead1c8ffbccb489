-- The tree: nodes, the sessions that its ephemeral nodes belong to, and the events that watches are told of.

create table reveille_coordination.tree (
    only_row boolean primary key default true check (only_row),
    -- The number of the last change. Whoever changes the tree holds this row from before its first look at it until it commits: so
    -- changes are made in the order of their numbers, and become visible in it.
    last bigint not null,
    -- Events up to this number are not there any more.
    forgotten bigint not null
);
insert into reveille_coordination.tree (last, forgotten) values (0, 0);

-- It ends with its row, which only the holder of the tree deletes. From lease_end on it changes nothing; its nodes are there until it is
-- ended.
create table reveille_coordination.tree_session (
    -- The number of the change that opened it.
    id bigint primary key,
    -- What a node's grants are compared with: 'anyone', and what it showed that it is.
    identities text[] not null,
    timeout interval not null,
    lease_end timestamptz not null
) with (fillfactor = 50);

-- Apart from the session, so that a change and a renewal do not wait for each other.
create table reveille_coordination.tree_call (
    session bigint primary key,
    last_call bigint not null
) with (fillfactor = 50);

create table reveille_coordination.tree_node (
    path text collate "C" primary key,
    -- Null for the root.
    parent text collate "C",
    data bytea not null,
    -- Each the sum of what is allowed (1 read, 2 write, 4 create, 8 delete, 16 administer), a space, and to whom.
    grants text[] not null,
    created bigint not null,
    modified bigint not null,
    children_modified bigint not null,
    version integer not null,
    acl_version integer not null,
    -- Of children, of any kind.
    creations integer not null,
    children integer not null,
    -- The session whose ephemeral node it is.
    owner bigint,
    is_container boolean not null,
    created_at timestamptz not null,
    modified_at timestamptz not null,
    -- A container whose last child went. Changes far more rarely than what it is made of, which therefore no index looks at.
    is_over boolean generated always as (is_container and children = 0 and creations <> 0) stored
) with (fillfactor = 80);
create index tree_node_parent on reveille_coordination.tree_node (parent, path);
create index tree_node_owner on reveille_coordination.tree_node (owner) where owner is not null;
create index tree_node_over on reveille_coordination.tree_node (path) where is_over;
insert into reveille_coordination.tree_node values (
    '/', null, '', '{31 anyone}', 0, 0, 0, 0, 0, 0, 0, null, false, clock_timestamp(), clock_timestamp(), default
);

create table reveille_coordination.tree_event (
    zxid bigint not null,
    step integer not null,
    -- 1 the node was made, 2 it has other data, 3 it went.
    kind smallint not null,
    path text not null,
    at timestamptz not null default clock_timestamp(),
    primary key (zxid, step)
);

create function reveille_coordination.tree_may(grants text[], who text[], wanted integer) returns boolean
language sql immutable as $$
    select exists (
        select 1 from unnest(grants) as listed (text)
        where split_part(text, ' ', 1)::integer & wanted = wanted and substr(text, strpos(text, ' ') + 1) = any (who)
    )
$$;

create function reveille_coordination.tree_next(number integer) returns integer
language sql immutable as $$
    select case number when 2147483647 then -2147483648 else number + 1 end
$$;

create function reveille_coordination.tree_open(asked_identities text[], timeout_millis bigint) returns bigint
language plpgsql as $$
declare
    opened bigint;
    lasts interval := timeout_millis * interval '1 millisecond';
begin
    update reveille_coordination.tree set last = last + 1 returning last into opened;
    insert into reveille_coordination.tree_session (id, identities, timeout, lease_end)
        values (opened, asked_identities, lasts, clock_timestamp() + lasts);
    insert into reveille_coordination.tree_call (session, last_call) values (opened, 0);
    return opened;
end $$;

-- Whether it lives.
create function reveille_coordination.tree_renew(asked_id bigint) returns boolean
language plpgsql as $$
begin
    -- If somebody is ending this session, wait, and look at the clock after that.
    perform 1 from reveille_coordination.tree_session where id = asked_id for no key update;
    update reveille_coordination.tree_session set lease_end = clock_timestamp() + timeout
        where id = asked_id and lease_end > clock_timestamp();
    return found;
end $$;

-- A node without children goes. For who holds the tree.
create function reveille_coordination.tree_remove(this bigint, asked_step integer, asked_path text, its_parent text)
returns void
language plpgsql as $$
begin
    delete from reveille_coordination.tree_node where path = asked_path;
    update reveille_coordination.tree_node set children = children - 1, children_modified = this
        where path = its_parent;
    insert into reveille_coordination.tree_event (zxid, step, kind, path) values (this, asked_step, 3, asked_path);
end $$;

-- Ends a session and its nodes, so many at most as one change; how many went. For who holds the tree.
create function reveille_coordination.tree_end(asked_id bigint, most integer) returns integer
language plpgsql as $$
declare
    this bigint;
    went integer;
begin
    -- From here on it neither changes anything nor is renewed.
    update reveille_coordination.tree_session set lease_end = '-infinity' where id = asked_id;
    if not found then
        return 0;
    end if;
    update reveille_coordination.tree set last = last + 1 returning last into this;
    with gone as (
        delete from reveille_coordination.tree_node
            where path in (select path from reveille_coordination.tree_node where owner = asked_id limit most)
            returning path, parent
    ), below as (
        select parent, count(*)::integer as number from gone group by parent
    ), left_behind as (
        update reveille_coordination.tree_node as node
            set children = node.children - below.number, children_modified = this
            from below where node.path = below.parent
    )
    insert into reveille_coordination.tree_event (zxid, step, kind, path)
        select this, row_number() over (order by path), 3, path from gone;
    get diagnostics went = row_count;
    if went < most then
        delete from reveille_coordination.tree_session where id = asked_id;
        delete from reveille_coordination.tree_call where session = asked_id;
    end if;
    notify reveille_tree;
    return went;
end $$;

-- Whether more is left of it, for another call: what many nodes need is more than one call may take.
create function reveille_coordination.tree_close(asked_id bigint) returns boolean
language plpgsql as $$
begin
    perform 1 from reveille_coordination.tree for update;
    return reveille_coordination.tree_end(asked_id, 1000) = 1000;
end $$;

-- Ends sessions whose time has come, takes away containers whose last child went, and forgets events that everybody has read who
-- still lives: ten minutes are more than any session's timeout. Whether more is left, for another call.
create function reveille_coordination.tree_reap() returns boolean
language plpgsql as $$
declare
    left_to_do integer := 1000;
    ended bigint;
    this bigint;
    empty record;
    forgotten_to bigint;
begin
    perform 1 from reveille_coordination.tree for update;
    for ended in
        select id from reveille_coordination.tree_session where lease_end <= clock_timestamp() order by id limit 100
    loop
        -- Again under its lock: a renewal may have been under way.
        perform 1 from reveille_coordination.tree_session
            where id = ended and lease_end <= clock_timestamp() for update;
        if found then
            left_to_do := left_to_do - reveille_coordination.tree_end(ended, left_to_do);
        end if;
        exit when left_to_do = 0;
    end loop;
    for empty in
        select path, parent from reveille_coordination.tree_node where is_over order by path limit 100
    loop
        update reveille_coordination.tree set last = last + 1 returning last into this;
        perform reveille_coordination.tree_remove(this, 1, empty.path, empty.parent);
        notify reveille_tree;
    end loop;
    select max(zxid) into forgotten_to from (
        select zxid, at from reveille_coordination.tree_event order by zxid, step limit 5000
    ) as oldest where at < clock_timestamp() - interval '10 minutes';
    if forgotten_to is not null then
        update reveille_coordination.tree set forgotten = forgotten_to;
        delete from reveille_coordination.tree_event where zxid <= forgotten_to;
    end if;
    return left_to_do = 0
        or exists (select 1 from reveille_coordination.tree_session where lease_end <= clock_timestamp())
        or exists (select 1 from reveille_coordination.tree_node where is_over);
end $$;

-- All steps as one change, or none. A row for each step with what it made or changed; or one row with the step that failed, from 0, and why.
create function reveille_coordination.tree_change(
    asked_session bigint, asked_call bigint,
    kinds text[], paths text[], parents text[], datas bytea[],
    -- Null: any.
    versions integer[],
    -- Of what is made: 1 its name gets a number, 2 it is ephemeral, 4 it is a container.
    modes integer[],
    -- Grants, with line feeds between them. Null: they would be of nobody.
    grant_lists text[]
) returns table (
    zxid bigint, step integer, problem text, path text, created bigint, modified bigint, children_modified bigint, version integer,
    acl_version integer, creations integer, children integer, owner bigint, created_at timestamptz, modified_at timestamptz,
    data_bytes integer
)
language plpgsql as $$
#variable_conflict use_column
declare
    this bigint;
    moment timestamptz;
    who text[];
    at integer := 0;
    why text;
    above reveille_coordination.tree_node;
    node reveille_coordination.tree_node;
    done reveille_coordination.tree_node[] := '{}';
    sizes integer[] := '{}';
begin
    perform 1 from reveille_coordination.tree for update;
    moment := clock_timestamp();
    select identities into who from reveille_coordination.tree_session
        where id = asked_session and lease_end > moment;
    if not found then
        why := 'session_lost';
    else
        -- One that was given up may come later than those after it, refused ones included: then it comes not at all.
        update reveille_coordination.tree_call set last_call = asked_call
            where session = asked_session and last_call < asked_call;
        if not found then
            why := 'overtaken';
        end if;
    end if;
    -- What fails here leaves nothing behind, its number included.
    begin
        if why is not null then
            raise exception using errcode = 'RT000', message = why;
        end if;
        update reveille_coordination.tree set last = last + 1 returning last into this;
        while at < cardinality(kinds) loop
            at := at + 1;
            if kinds[at] in ('create', 'delete') then
                above := null;
                select * into above from reveille_coordination.tree_node where path = parents[at];
            end if;
            if kinds[at] = 'set_acl' and grant_lists[at] is null then
                raise exception using errcode = 'RT000', message = 'invalid_acl';
            end if;
            if kinds[at] = 'delete' then
                if parents[at] is null then
                    raise exception using errcode = 'RT000', message = 'root_stays';
                elsif above.path is null then
                    raise exception using errcode = 'RT000', message = 'no_node';
                elsif not reveille_coordination.tree_may(above.grants, who, 8) then
                    raise exception using errcode = 'RT000', message = 'forbidden';
                end if;
            end if;
            if kinds[at] <> 'create' then
                node := null;
                select * into node from reveille_coordination.tree_node where path = paths[at];
                if not found then
                    raise exception using errcode = 'RT000', message = 'no_node';
                end if;
            end if;
            case kinds[at]
            when 'create' then
                if parents[at] is null then
                    raise exception using errcode = 'RT000', message = 'node_exists';
                elsif grant_lists[at] is null then
                    raise exception using errcode = 'RT000', message = 'invalid_acl';
                elsif above.path is null then
                    raise exception using errcode = 'RT000', message = 'no_node';
                elsif not reveille_coordination.tree_may(above.grants, who, 4) then
                    raise exception using errcode = 'RT000', message = 'forbidden';
                end if;
                node := (
                    paths[at] || case when modes[at] & 1 = 0 then ''
                        when above.creations < 0 then '-' ||
                            lpad((-above.creations::bigint)::text, greatest(9, length((-above.creations::bigint)::text)), '0')
                        else lpad(above.creations::text, 10, '0') end,
                    above.path, datas[at], string_to_array(grant_lists[at], E'\n'),
                    this, this, this, 0, 0, 0, 0,
                    case when modes[at] & 2 <> 0 then asked_session end, modes[at] & 4 <> 0, moment, moment, false
                );
                if octet_length(node.path) > 1024 then
                    raise exception using errcode = 'RT000', message = 'too_long';
                end if;
                perform 1 from reveille_coordination.tree_node where path = node.path;
                if found then
                    raise exception using errcode = 'RT000', message = 'node_exists';
                elsif above.owner is not null then
                    raise exception using errcode = 'RT000', message = 'no_children_for_ephemerals';
                end if;
                insert into reveille_coordination.tree_node (
                    path, parent, data, grants, created, modified, children_modified, version, acl_version, creations, children,
                    owner, is_container, created_at, modified_at
                ) values (
                    node.path, node.parent, node.data, node.grants, this, this, this, 0, 0, 0, 0,
                    node.owner, node.is_container, moment, moment
                );
                update reveille_coordination.tree_node set creations = reveille_coordination.tree_next(creations),
                    children = children + 1, children_modified = this where path = above.path;
                insert into reveille_coordination.tree_event (zxid, step, kind, path) values (this, at, 1, node.path);
            when 'delete' then
                if node.version <> versions[at] then
                    raise exception using errcode = 'RT000', message = 'bad_version';
                elsif node.children > 0 then
                    raise exception using errcode = 'RT000', message = 'not_empty';
                end if;
                perform reveille_coordination.tree_remove(this, at, node.path, node.parent);
            when 'set' then
                if not reveille_coordination.tree_may(node.grants, who, 2) then
                    raise exception using errcode = 'RT000', message = 'forbidden';
                elsif node.version <> versions[at] then
                    raise exception using errcode = 'RT000', message = 'bad_version';
                end if;
                update reveille_coordination.tree_node set data = datas[at], modified = this, modified_at = moment,
                    version = reveille_coordination.tree_next(version) where path = node.path returning * into node;
                insert into reveille_coordination.tree_event (zxid, step, kind, path) values (this, at, 2, node.path);
            when 'set_acl' then
                if not reveille_coordination.tree_may(node.grants, who, 16) then
                    raise exception using errcode = 'RT000', message = 'forbidden';
                end if;
                update reveille_coordination.tree_node set grants = string_to_array(grant_lists[at], E'\n'),
                    acl_version = reveille_coordination.tree_next(acl_version) where path = node.path returning * into node;
            when 'check' then
                if not reveille_coordination.tree_may(node.grants, who, 1) then
                    raise exception using errcode = 'RT000', message = 'forbidden';
                elsif node.version <> versions[at] then
                    raise exception using errcode = 'RT000', message = 'bad_version';
                end if;
            end case;
            sizes := sizes || octet_length(node.data);
            node.data := '';
            done := done || node;
        end loop;
        notify reveille_tree;
    exception when sqlstate 'RT000' then
        get stacked diagnostics why = message_text;
        return query select 0::bigint, greatest(at, 1) - 1, why, null::text, null::bigint, null::bigint, null::bigint,
            null::integer, null::integer, null::integer, null::integer, null::bigint, null::timestamptz, null::timestamptz,
            null::integer;
        return;
    end;
    return query select this, (place - 1)::integer, null::text, made.path, made.created, made.modified, made.children_modified,
        made.version, made.acl_version, made.creations, made.children, made.owner, made.created_at, made.modified_at, sizes[place]
        from unnest(done) with ordinality as made (
            path, parent, data, grants, created, modified, children_modified, version, acl_version, creations, children,
            owner, is_container, created_at, modified_at, is_over, place
        ) order by place;
end $$;
