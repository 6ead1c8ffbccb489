//! The API as a client meets it: a real socket, the real scheduler, the engine in memory.

mod bad_input;
mod batch;
mod connections;
mod operations;
mod runs;
mod schedules;
mod support;
