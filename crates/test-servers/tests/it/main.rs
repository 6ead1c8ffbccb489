//! Whether the servers come, go and leave nothing behind.

mod postgres;
