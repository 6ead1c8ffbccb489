//! Implementation of the store port on PostgreSQL 14 or later. The database is the only resource that the members of a
//! cluster need to share.
//!
//! Several processes use one database concurrently. Writes that every member may make (creates and cancellations) lock
//! only the rows that they write. An owner's write locks the row of its shard FOR SHARE, and compares the owner's term
//! with the term in this row in the same transaction. If a write and a take of a shard are concurrent, one of them
//! waits for the other. No write under an older term therefore takes effect after the take has returned a newer term.
//!
//! The write of a due row and the read of `closed` are two separate transactions. The creator moves a row to a later
//! position if the row is at or before `closed` ([`store::Placed::settled`]). A cancellation takes effect at once. The
//! tables of due rows and runs are partitioned by time, and the store drops whole partitions
//! ([`store::Store::maintain`]).
//!
//! A database may return to an earlier state. The module `epoch` detects this on each new connection, and raises the terms
//! of all shards.
//!
//! Non-goals: the crate elects no owners (see `coordination`) and caches no rows. It reads a clock only to choose a
//! partition and to delete history.
//!
//! Invariants: the server has committed an acknowledged write synchronously. Every wait has a time limit. If the
//! connection of a call ends, the call fails with [`store::StoreError::Unavailable`] and may have taken effect. The
//! store opens lost connections again without an action of the caller.

mod authority;
mod cancel;
mod cancellations;
mod connections;
mod create;
mod due;
mod engine;
mod epoch;
mod error;
mod gather;
mod history;
mod inbox;
mod insert_log;
mod listing;
mod options;
mod ownership;
mod partition;
mod past_timings;
mod plan;
mod read;
mod rows;
mod run_counts;
mod run_index;
mod runs_by_time;
mod schema;
mod write;

pub use authority::StoredAuthority;
pub use engine::PostgresStore;
pub use error::OpenError;
pub use options::Options;
pub use schema::{Cluster, Migrated, SCHEMA_VERSION, index_runs, migrate, start_epoch};
