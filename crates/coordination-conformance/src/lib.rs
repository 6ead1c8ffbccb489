//! What every engine of the ports of `coordination` must do: one test per promise, run by each engine against its real
//! server. See the crate `conformance` for how an engine runs a suite.
//!
//! - [`tree`]: the tree; [`recipes`]: all recipes on it; [`load`]: a tree with much in it, seconds each.
//! - [`elector`]: the elector.
//!
//! Cases about the end of a lease wait for it, a fraction of a second.

pub mod elector;
mod history;
pub mod load;
pub mod recipes;
pub mod tree;

pub use conformance::Case;
