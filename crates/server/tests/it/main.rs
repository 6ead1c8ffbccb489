//! The API as a client meets it: a real socket, the real scheduler, the engine in memory.

#![expect(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod bad_input;
mod batch;
mod connections;
mod operations;
mod runs;
mod schedules;
mod support;
mod tenants;
