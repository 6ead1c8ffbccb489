//! Encoding of the bytes on disk: journal entries, index keys, and the index values that only this engine uses.
//!
//! The crate `stored` encodes schedules, runs, tenants and hand-overs. Numbers are little-endian in values. They are
//! big-endian in keys, so that the order of the bytes is the order of the numbers. Decoding returns the value that the
//! encoder received. It returns an error for other bytes and never panics.

pub(crate) mod changed;
pub(crate) mod counted;
pub(crate) mod entry;
pub(crate) mod key;
pub(crate) mod listed;
pub(crate) mod positions;
pub(crate) mod tenant;
pub(crate) mod timed;

#[cfg(test)]
pub(crate) mod tests;
