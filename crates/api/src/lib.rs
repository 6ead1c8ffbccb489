//! What goes over the wire of Reveille's HTTP API, version 1: the bodies of requests and answers, and nothing else.
//!
//! Servers and clients share these types. They hold what is written, not what it means: a time that cannot be, or a
//! cron that never fires, is the server's to find. docs/http-api.md tells each route and field.
//!
//! Always true here: field names and the values of enums are the wire's, and never change within `/v1`; fields may be
//! added to answers, so a client ignores what it does not know; a request with an unknown field is refused.

mod ask;
mod batch;
mod patch;
mod problem;
mod run;
mod schedule;
mod secret;
mod tenant;
mod time;

pub use batch::BatchLine;
pub use patch::SchedulePatch;
pub use problem::{FieldError, PROBLEM_CONTENT_TYPE, Problem};
pub use run::{Attempt, CancelResult, Cancelled, Redriven, Run, RunPage, RunState};
pub use schedule::{
    DryRun, HttpTarget, Retry, RetryRequest, Schedule, SchedulePage, ScheduleRequest, ScheduleState, ScheduleSummary,
    Target, TargetRequest, TargetRequestHttp,
};
pub use secret::Secret;
pub use tenant::{
    AuditEntry, AuditPage, Egress, Key, KeyList, KeyMade, KeyRequest, Quota, QuotaSheet, Quotas, Role, SigningSecret,
    SigningSecretList, SigningSecretMade, Tenant, TenantList, TenantMade, TenantPatch, TenantRequest,
};
pub use time::Time;

/// The media type of a batch: one JSON text per line.
pub const NDJSON_CONTENT_TYPE: &str = "application/x-ndjson";
