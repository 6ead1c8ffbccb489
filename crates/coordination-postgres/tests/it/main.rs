//! Against a real server: the ports' promises, and what becomes of them when the server stalls, dies or comes back.

#![expect(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod electors;
mod schema;
mod support;
mod tree;
