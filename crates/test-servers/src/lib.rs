//! Real servers for tests and benches: started on this machine, in a temporary folder, on a free port of 127.0.0.1; and [`http`],
//! the HTTP client of tests.
//!
//! Only tests, benches and chores use this. Its calls block: a test calls them before, or between, what it measures.
//!
//! Always true here: a server and its folder are gone soon after the process that started it, however that ended
//! (SIGKILL included); nothing is shared between two processes; what a server calls durable is synced, as in production.

// A test's own thread may wait, read a clock and start programs: `runtime` is the door of what is tested.
#![expect(clippy::disallowed_methods, reason = "no part of the product; see above")]

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
