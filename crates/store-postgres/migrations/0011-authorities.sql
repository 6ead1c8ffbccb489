-- Certificate authorities of the cluster, with which its members authenticate each other.
--
-- A cluster has one authority, and two during a rotation. The key is encrypted with a key that is not in the database
-- (crates/store/src/encryption.rs), so a person who reads or writes this table cannot issue a certificate.
create table reveille.authority (
    number bigint primary key,
    key bytea not null,
    created_at timestamptz not null default clock_timestamp()
);
