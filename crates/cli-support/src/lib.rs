//! Code that the commands and the benchmarks of the binary share: output of lines on standard output, a URL type that
//! hides passwords, HTTP/1.1 with little work per message, and a small receiver of callbacks.
//!
//! This crate does not contain the HTTP API (see the crate `server`) or the HTTP client for callbacks (see the crate
//! `callback`).

pub mod console;
pub mod http1;
pub mod receiver;
mod url;

pub use url::Url;
