//! The store port on PostgreSQL, 14 or later, which is the only thing that several members of a cluster need to share.
//!
//! Several processes use one database at once. What any member writes (creations, marks) goes in without locks but those
//! of its own rows; what an owner writes goes in under the row of its shard, locked FOR SHARE, and its term. So of a write
//! and a take at once one waits for the other, and nothing of an older term takes effect once a newer one was answered.
//!
//! Row write and look at `closed` are two transactions on purpose: a row that is behind is left to its creator
//! ([`store::Placed::settled`]). A mark cancels by itself. Due rows and runs are partitioned by time, and dropped by the partition ([`store::Store::maintain`]).
//!
//! What this does not do: it elects nobody (that is `coordination`), keeps no cache of rows, and never reads a clock for a
//! decision but for where a row is kept, and what is history.
//!
//! Always true here: what was answered is committed, synchronously; every wait has a limit; a call whose connection ended
//! fails with [`store::StoreError::Unavailable`], and may have taken effect; connections come back by themselves.

mod arrivals;
mod cancel;
mod connections;
mod create;
mod due;
mod engine;
mod error;
mod gather;
mod history;
mod inbox;
mod listing;
mod marks;
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
