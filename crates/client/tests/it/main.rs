//! The SDK against the real server over real sockets, and against networks and servers that misbehave.

#![expect(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod batches;
mod changes;
mod faults;
mod schedules;
mod support;
mod tenants;
mod tls;
