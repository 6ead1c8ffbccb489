//! Bytes on disk: journal entries, index keys and the index values of this engine alone.
//!
//! Schedules, runs, tenants and hand-overs have the bytes of `stored`. Numbers are little-endian in values and
//! big-endian in keys, where their order is the index's. Decoding returns the value that was encoded; other bytes are
//! an error and never a panic.

pub(crate) mod changed;
pub(crate) mod entry;
pub(crate) mod key;
pub(crate) mod listed;
pub(crate) mod tenant;

#[cfg(test)]
pub(crate) mod tests;
