//! The bytes of a schedule, a run, a tenant and a hand-over. Both store engines and the messages between members use
//! them.
//!
//! The crate does not know where an engine puts the bytes, and it does no I/O. Each engine keeps its own keys, columns
//! and journal entries. The bytes are written by hand, so that they never depend on a library's idea of a format; only
//! tenants are JSON. Each value starts with the version of its form.
//!
//! Invariants:
//! - Decoding returns the value that was encoded. Other bytes are an error and never a panic, and cost no more memory
//!   than a small multiple of their length.
//! - Bytes that a released build wrote stay readable. A new form has a new version.

pub mod hand_over;
pub mod run;
pub mod schedule;
pub mod tenant;

mod bytes;

pub use bytes::{Malformed, Put, Take};

#[cfg(test)]
mod tests;
