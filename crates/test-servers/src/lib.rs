//! Real servers for tests and benches, and [`http`], the HTTP client of tests. The servers run on this machine, in a
//! temporary folder, on a free port of 127.0.0.1.
//!
//! Only tests, benches and chores use this crate. Its calls block, so a test makes them before or between its
//! measurements.
//!
//! Invariants: a server and its folder are removed soon after the process that started it has ended, even by SIGKILL.
//! Two processes never share a server. Data that a server acknowledges as durable is synced, as in production.

// A test's own thread may wait, read a clock and start programs. The crate `runtime` replaces these functions only for
// the tested code.
#![expect(clippy::disallowed_methods, reason = "this crate is not part of the product; see above")]

mod cache;
mod certificate;
mod guard;
pub mod http;
pub mod java;
pub mod mixed;
mod network;
mod port;
pub mod postgres;
mod proxy;
pub mod python;
pub mod zookeeper;

pub use network::Namespace;
pub use proxy::Proxy;
