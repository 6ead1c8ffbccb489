-- Certificate authorities of the cluster, with which its members authenticate each other.
--
-- A cluster has one authority, and two during a rotation. The key is encrypted with a key that is not in the database
-- (crates/store/src/encryption.rs), so a person who reads or writes this table cannot issue a certificate.
create table reveille.authority (
    number integer primary key check (number > 0),
    key bytea not null,
    -- False from the creation of an authority until all members trust its certificates.
    issues boolean not null
);
