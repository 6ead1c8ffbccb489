//! Tests with a real PostgreSQL server: the conformance suite, and faults of networks and servers.

#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

mod cancellations;
mod conformance;
mod epochs;
mod faults;
mod full;
mod history;
mod inbox;
mod insert_log;
mod listing;
mod partitions;
mod rejections;
mod retention;
mod run_counts;
mod runs_by_time;
mod support;
