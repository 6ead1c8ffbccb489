//! Runs the conformance suites of the ports and the recipes on the engines in memory. Also tests that the suites detect
//! deliberate bugs, and tests the examples and the code in the documentation.

mod elector;
mod examples;
mod pages;
mod pitfalls;
mod recipes;
mod support;
mod tree;
