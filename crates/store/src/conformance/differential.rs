//! An engine against the model in memory.
