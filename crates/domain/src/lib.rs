//! What Reveille knows without asking anyone: tenants, schedules, occurrences, retries, and the decisions over them.
//!
//! Everything here is a value or a pure function of its arguments. There is no clock, no randomness, no task and no
//! I/O in this crate: the present instant and a random number are arguments, and `xtask tidy` checks the imports.

pub mod decide;
pub mod duration;
pub mod egress;
pub mod id;
pub mod limits;
pub mod occurrence;
pub mod quota;
pub mod recurrence;
pub mod retry;
pub mod schedule;
pub mod secret;
pub mod tenant;
pub mod validate;

pub use egress::{EGRESS_REFUSED, Egress, EgressRefusal};
pub use id::{Incarnation, LabelKey, PollerId, Revision, ScheduleId, ShardId, TargetKey, TenantId, Term};
pub use instants::Timestamp;
pub use occurrence::{Attempt, AttemptResult, DueKey, Occurrence, RunId, RunState};
pub use quota::{Quota, Quotas};
pub use recurrence::{Cron, CronError, When};
pub use retry::RetryPolicy;
pub use schedule::{Edition, HttpTarget, Schedule, Seen, Spec, Status, Target};
pub use secret::{KeyId, NOT_OPENED, Secret};
pub use tenant::{ApiKey, Audit, Role, SigningSecret, Tenant};
