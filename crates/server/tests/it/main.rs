//! Tests of the HTTP API with a real socket, the real scheduler and the in-memory store.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod audit;
mod bad_input;
mod batch;
mod bus_targets;
mod changes;
mod connections;
mod cron;
mod dry_run;
mod excerpts;
mod explain;
mod fast_clock;
mod isolation;
mod listing;
mod once;
mod openapi;
mod operations;
mod preview;
mod quotas;
mod report;
mod run_listing;
mod runs;
mod schedules;
mod set_clock;
mod support;
mod tenants;
mod unlisted_runs;
mod unread;
