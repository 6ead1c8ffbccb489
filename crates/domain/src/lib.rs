//! Domain model of Reveille: tenants, schedules, occurrences, retries, and the decisions about them.
//!
//! This crate contains only types of values and pure functions. It uses no clock, no randomness, no tasks and no I/O.
//! Callers pass the current instant and a random number. `xtask tidy` checks that this crate imports only permitted
//! crates.

pub mod audit;
pub mod count;
pub mod decide;
pub mod delay;
pub mod duration;
pub mod egress;
pub mod explain;
pub mod id;
pub mod limits;
pub mod occurrence;
pub mod outline;
pub mod preview;
pub mod quota;
pub mod rebuild;
pub mod recurrence;
pub mod retention;
pub mod retry;
pub mod schedule;
pub mod secret;
pub mod target;
pub mod tenant;
pub mod timing;
pub mod topic;
pub mod validate;

pub use audit::{Difference, DifferenceKind};
pub use count::{Counts, Facet, Group, Growth, Histogram, Hour, RunOrigin, RunSample, Tallies, Tally};
pub use delay::{Delay, LATE_MIN};
pub use egress::{EGRESS_REJECTED, Egress, EgressRejection};
pub use id::{Incarnation, LabelKey, PollerId, Revision, ScheduleId, ShardId, TargetKey, TenantId, Term};
pub use instants::Timestamp;
pub use occurrence::{
    Attempt, AttemptResult, BUS_NOT_CONFIGURED, BUS_REJECTED, DueKey, NOT_RESOLVED, Occurrence, RunId, RunState,
    TLS_FAILED,
};
pub use outline::{RunFilter, RunOutline, RunStateKind};
pub use quota::{Quota, Quotas};
pub use recurrence::{ClockChange, Cron, CronError, When};
pub use retention::Retention;
pub use retry::RetryPolicy;
pub use schedule::{Precondition, Schedule, ScheduleVersion, Spec, Status};
pub use secret::{KeyId, NOT_DECRYPTED, Secret};
pub use target::{BusTarget, CloudEvent, CloudEventMode, HttpTarget, Target, TargetKind};
pub use tenant::{ApiKey, Audit, Role, SigningSecret, Tenant};
pub use timing::{Author, PastTiming, TimingEnd};
pub use topic::TopicPattern;
