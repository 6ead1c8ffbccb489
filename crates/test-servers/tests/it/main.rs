//! Tests that the test servers start and stop, and that no process and no file of a server remains after its end.

mod postgres;
