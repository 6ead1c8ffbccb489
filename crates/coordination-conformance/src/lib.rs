//! Conformance suites of the ports of `coordination`: one test per promise, which every engine runs against its
//! real server. The crate `conformance` describes how an engine runs a suite.
//!
//! - [`tree`]: the tree; [`recipes`]: all recipes on it; [`load`]: large trees, seconds per case.
//! - [`elector`]: the elector.
//!
//! Cases about the end of a lease wait for it, a fraction of a second.

pub mod elector;
mod history;
pub mod load;
pub mod recipes;
pub mod tree;

pub use conformance::Case;
