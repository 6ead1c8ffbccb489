//! What a program does that is led to its engine by a URL, as processes on real ones.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]
#![expect(clippy::disallowed_methods, reason = "these are tests of processes, which live by the machine's clocks")]

mod examples;
