//! The store against a real PostgreSQL: the port's promises, and what a network and a server can do.

#![expect(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod arrivals;
mod conformance;
mod faults;
mod full;
mod history;
mod inbox;
mod listing;
mod marks;
mod partitions;
mod refusals;
mod support;
