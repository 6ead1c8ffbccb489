//! The Rust SDK for Reveille's HTTP API. With the SDK, programs create, change and cancel schedules, and read the
//! outcomes of runs.
//!
//! ```no_run
//! use reveille_client::{Client, Options, ScheduleRequest};
//!
//! # async fn remind() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new("http://127.0.0.1:8080", &std::fs::read_to_string("data/admin.key")?, Options::default())?;
//! let reminder = ScheduleRequest::at("2035-01-02T03:04:05Z", "https://shop.example/remind")
//!     .payload(&serde_json::json!({"order": 17}))?
//!     .label("customer", "4711");
//! let created = client.create(&reminder).await?;
//! client.cancel(&created.id).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A [`Client`] is cheap to clone, shares its connections with its clones, and runs on the caller's tokio runtime.
//! Requests and responses use the types of [`api`]; docs/http-api.md of the server describes each field.
//!
//! This crate does not receive callbacks: the crate `receiver` receives them. The client does not follow redirects, and
//! it ignores proxy settings.
//!
//! Invariants: every call except a batch ends within [`Options::deadline`]. The client repeats a request only if the
//! server cannot carry out the operation twice. The API key appears in no `Debug` text, error or URL.

#![warn(missing_docs)]

mod batch;
mod changes;
mod clock;
mod error;
mod idempotency;
mod options;
mod pages;
mod report;
mod retry;
mod runs;
mod schedules;
mod tag;
mod tenants;
mod transport;

use std::sync::Arc;

pub use api;
pub use api::{
    AuditEntry, BatchLine, CancelResult, Cancelled, DryRun, FieldError, Key, KeyCreated, KeyRequest, Preview, Problem,
    Quota, QuotaSheet, Quotas, Role, Run, RunState, Schedule, ScheduleCount, SchedulePage, SchedulePatch,
    ScheduleRequest, ScheduleState, Secret, SigningSecret, SigningSecretCreated, Tenant, TenantCreated, Time,
};
pub use changes::{Condition, Updated};
pub use error::{Error, Rejection};
pub use futures_util::{Stream, StreamExt, TryStreamExt};
pub use idempotency::{Created, IdempotencyKey, IdempotencyKeyError};
pub use options::{Options, SetupError};
pub use report::ReportQuery;
pub use runs::{RunOrder, RunQuery};
pub use rustls::pki_types::CertificateDer;
pub use schedules::{ListBy, Order, Put};
pub use tag::{Tag, TagError};

/// Fields that the server adds to a created or changed schedule.
pub type ScheduleSummary = api::ScheduleSummary<'static>;

/// Client of one server. The client authenticates with one API key. Clones are cheap and share their connections.
#[derive(Clone)]
pub struct Client(Arc<transport::Transport>);

impl Client {
    /// Returns a client of the server at `url`. The URL has the scheme `http` or `https`. It may contain a path, to
    /// which the client appends `/v1`. The client removes white space around `key` and sends the key as the `Bearer`
    /// token. This call sends no request.
    ///
    /// # Errors
    /// Returns [`SetupError`] if the URL, the key or the options are invalid.
    pub fn new(url: &str, key: &str, options: Options) -> Result<Self, SetupError> {
        Ok(Client(Arc::new(transport::Transport::new(url, key, options)?)))
    }

    /// Base URL of the server, without a slash at its end.
    #[must_use]
    pub fn url(&self) -> &str {
        self.0.url()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("url", &self.url()).finish_non_exhaustive()
    }
}
