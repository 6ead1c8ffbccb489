//! The bytes that every store engine keeps of a tenant.
//!
//! The crate does not know where an engine puts the bytes, and it does no I/O.

pub mod tenant;
