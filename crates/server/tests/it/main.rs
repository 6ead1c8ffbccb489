//! The API as a client meets it: a real socket, the real scheduler, the engine in memory.

#![expect(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod apart;
mod bad_input;
mod batch;
mod changes;
mod connections;
mod dry_run;
mod listing;
mod once;
mod openapi;
mod operations;
mod quotas;
mod runs;
mod schedules;
mod support;
mod tenants;
