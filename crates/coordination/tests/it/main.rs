//! The engine in memory keeps the port's promises, and a membership over it keeps its own.

mod membership;
