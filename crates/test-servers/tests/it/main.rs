//! Tests that the servers start, stop and leave nothing behind.

mod postgres;
