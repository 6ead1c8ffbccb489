//! Real servers for tests and benchmarks, and [`http`], the HTTP client of tests. Each server runs on this machine, in
//! a temporary folder, on a free port of 127.0.0.1.
//!
//! Only tests, benchmarks and the commands of `xtask` use this crate. Except for [`http::AsyncConnection`], the calls
//! of this crate block the calling thread, so a test must not make these calls during a measurement.
//!
//! Invariants: a guard stops a server and deletes its folder soon after the end of the process that started the server,
//! even after SIGKILL. Two processes never share a server. As in production, a server syncs data to disk before it
//! acknowledges the data as durable, except Kafka, which relies on its replicas.

// Threads of tests may wait, read a clock and start programs. Only the tested code must use the crate `runtime` for
// these operations.
#![expect(clippy::disallowed_methods, reason = "only tests, benchmarks and xtask use this crate")]

mod cache;
pub mod certificate;
pub mod go;
mod guard;
pub mod http;
pub mod java;
pub mod kafka;
pub mod mixed;
mod network;
pub mod node;
pub mod port;
pub mod postgres;
mod process;
mod proxy;
pub mod python;
pub mod zookeeper;

pub use network::Namespace;
pub use proxy::Proxy;
