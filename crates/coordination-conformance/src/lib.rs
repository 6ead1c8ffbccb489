//! Conformance suites of the ports of `coordination`. A suite has one test per promise, and every engine runs the tests
//! against its real server. The crate `conformance` describes how an engine runs a suite.
//!
//! - [`tree`] tests the tree, [`recipes`] tests all recipes on a tree, and [`load`] tests large trees. A case of
//!   [`load`] takes seconds.
//! - [`elector`] tests the elector.
//!
//! A case about the end of a lease waits until the lease ends, which takes a fraction of a second.

pub mod elector;
mod history;
pub mod load;
pub mod recipes;
pub mod tree;

pub use conformance::Case;
