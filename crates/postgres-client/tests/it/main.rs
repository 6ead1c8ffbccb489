//! Against a real server: what is connected to and what is not, and what happens when it goes away.

#![expect(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod connecting;
mod losing;
