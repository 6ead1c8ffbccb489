//! Tests of the SDK with the real server over real sockets, and with faulty networks and servers.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod batches;
mod changes;
mod faults;
mod schedules;
mod support;
mod tenants;
mod tls;
