//! The instants of recurring schedules.

/// A cron expression of 5 or 6 fields (six: seconds first) in an IANA zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cron {
    /// As the user wrote them; the parsed form is made on use.
    pub expression: String,
    pub zone: String,
}
