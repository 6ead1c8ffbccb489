//! Reasons for which an attempt starts after its instant.
//!
//! docs/decisions/0241-explain-occurrences-from-past-timings.md gives the reasons for the design.

use std::time::Duration;

use crate::{Quota, Timestamp};

/// Shortest lateness of a first attempt that an explanation mentions, and for which the attempt's record contains a
/// reason.
pub const LATE_MIN: Duration = Duration::from_millis(100);

/// Reason for which an attempt starts after its instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delay {
    /// The tenant's attempts have reached a quota since this instant.
    Quota { quota: Quota, since: Timestamp },
    /// All slots of the service, of the tenant or of the target were in use.
    Slot,
    /// The circuit of the target was open, because its last attempts had failed. A waiting attempt starts at `until` or
    /// later. `until` is `None` if the attempt has started.
    Circuit { until: Option<Timestamp> },
    /// The member that started the attempt took over the shard at this instant, after the attempt was due.
    MemberDown { until: Timestamp },
}
