//! The store port on PostgreSQL 14 or later. The database is the only resource that the members of a cluster need to
//! share.
//!
//! Several processes use one database concurrently. Writes of any member (creates, cancellation records) lock only
//! their own rows. An owner's write locks the row of its shard FOR SHARE and compares terms in the same transaction. Of
//! a concurrent write and take, one waits for the other, so no write under an older term takes effect after a newer
//! term was returned.
//!
//! The row write and the read of `closed` are two separate transactions. The creator moves a row that is at or before
//! `closed` ([`store::Placed::settled`]). A cancellation record cancels in the same step. Due rows and runs are
//! partitioned by time, and the store drops whole partitions ([`store::Store::maintain`]).
//!
//! Non-goals: the crate elects no owner (see `coordination`), caches no rows, and reads a clock only to choose a
//! partition and to delete history.
//!
//! Invariants: an acknowledged write was committed synchronously. Every wait has a limit. A call whose connection ended
//! fails with [`store::StoreError::Unavailable`], and may have taken effect. Connections reconnect by themselves.

mod cancel;
mod cancellations;
mod connections;
mod create;
mod due;
mod engine;
mod error;
mod gather;
mod history;
mod inbox;
mod insert_log;
mod listing;
mod options;
mod ownership;
mod partition;
mod plan;
mod read;
mod rows;
mod schema;
mod write;

pub use engine::PostgresStore;
pub use error::OpenError;
pub use inbox::InboxEntry;
pub use options::Options;
pub use schema::{Cluster, Migrated, SCHEMA_VERSION, migrate};
