//! Wire types of Reveille's HTTP API, version 1: the bodies of requests and responses.
//!
//! The server and the clients share these types. The types check the form of a body, not its meaning: the server
//! rejects an impossible time or a cron expression that never fires. docs/http-api.md describes each route and field.
//!
//! Invariants: field names and enum values never change within `/v1`. Responses may get new fields, so clients must
//! ignore unknown fields. The server rejects a request with an unknown field.

#![warn(missing_docs)]

mod audit;
mod batch;
mod builders;
mod explain;
mod patch;
mod preview;
mod problem;
mod report;
mod run;
mod schedule;
mod secret;
mod tenant;
mod time;

pub use audit::{Audit, AuditFinding};
pub use batch::BatchLine;
pub use explain::{Cause, CauseKind, Explanation, Verdict};
pub use patch::SchedulePatch;
pub use preview::{ClockChange, ClockChangeKind, Preview, PreviewOccurrence};
pub use problem::{FieldError, PROBLEM_CONTENT_TYPE, Problem};
pub use report::{Percentiles, Report, ReportBy, ReportGroup, ReportRow, ReportStates};
pub use run::{Attempt, CancelResult, Cancelled, Redriven, Run, RunPage, RunState};
pub use schedule::{
    BusTarget, CloudEvent, CloudEventMode, DryRun, HttpTarget, Retry, RetryRequest, Schedule, ScheduleCount,
    SchedulePage, ScheduleRequest, ScheduleState, ScheduleSummary, Target, TargetRequest, TargetRequestBus,
    TargetRequestHttp,
};
pub use secret::Secret;
pub use tenant::{
    AuditEntry, AuditPage, Egress, EgressPatch, Key, KeyCreated, KeyList, KeyRequest, Quota, QuotaSheet, Quotas, Role,
    SigningSecret, SigningSecretCreated, SigningSecretList, Tenant, TenantCreated, TenantList, TenantPatch,
    TenantRequest, Usage,
};
pub use time::Time;

/// Media type of a batch: one JSON text per line.
pub const NDJSON_CONTENT_TYPE: &str = "application/x-ndjson";
