//! Tests of the buffered producer in simulations.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails like a test")]

mod buffer;
mod crashes;
mod pages;
mod support;
