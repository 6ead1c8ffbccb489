//! The engines in memory pass the suites of their ports, the recipes pass on them, and the suites detect deliberate
//! bugs.

mod elector;
mod examples;
mod pages;
mod pitfalls;
mod recipes;
mod support;
mod tree;
