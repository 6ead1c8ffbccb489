-- Changes of tenants are counted and told.
alter table reveille.tenant add column version bigint not null default 0;

create table reveille.audit (
    tenant bigint not null,
    version bigint not null,
    value bytea not null,
    primary key (tenant, version)
);
