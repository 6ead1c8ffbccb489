//! The engines in memory keep the promises of their ports, the recipes hold on them, and the promises' tests can fail.

mod elector;
mod examples;
mod pitfalls;
mod recipes;
mod support;
mod tree;
