//! The store as its callers see it, on a real disk and on a simulated one.

#![expect(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod backup;
mod conformance;
mod crashes;
mod durable;
mod history;
mod listing;
mod refusals;
mod support;
