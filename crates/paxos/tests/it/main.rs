//! The crate as who drives it sees it.

#![expect(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod nodes;
mod stories;
mod words;
mod world;
