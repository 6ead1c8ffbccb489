//! Tests of the crate's public API, on a real disk and on a simulated disk.

#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

mod backup;
mod conformance;
mod crashes;
mod damaged_due_rows;
mod durable;
mod history;
mod listing;
mod rejections;
mod support;
