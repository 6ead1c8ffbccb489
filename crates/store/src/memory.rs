//! The reference model of the port, and the double that tests use.
