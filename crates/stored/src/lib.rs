//! Encoding of schedules, past timings, runs, counts of runs, tenants and hand-overs as bytes. Both store engines and
//! the messages between members use this encoding.
//!
//! The crate does not define where an engine stores the bytes, and does no I/O. Each engine defines its own keys,
//! columns and journal entries. The crate encodes tenants as JSON. It encodes all other values without a serialization
//! library, so that a new version of a library cannot change their form. Each of these values starts with the version
//! of its form.
//!
//! Invariants:
//! - Decoding returns the value that the encoder received. Decoding malformed bytes returns an error and never panics.
//!   The memory that decoding uses is at most a small multiple of the number of bytes.
//! - Every later build can read the bytes that a released build wrote. A new form has a new version.

pub mod count;
pub mod hand_over;
pub mod run;
pub mod schedule;
pub mod tenant;
pub mod timing;

mod bytes;

pub use bytes::{Malformed, Put, Take};

#[cfg(test)]
mod tests;
