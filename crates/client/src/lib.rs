//! The Rust SDK for Reveille's HTTP API: ask for callbacks, change and cancel them, see what became of them.
//!
//! ```no_run
//! use reveille_client::{Client, Options, ScheduleRequest};
//!
//! # async fn remind() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new("http://127.0.0.1:8080", &std::fs::read_to_string("data/admin.key")?, Options::default())?;
//! let reminder = ScheduleRequest::at("2035-01-02T03:04:05Z", "https://shop.example/remind")
//!     .payload(&serde_json::json!({"order": 17}))?
//!     .label("customer", "4711");
//! let made = client.create(&reminder).await?;
//! client.cancel(&made.id).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A [`Client`] is cheap to clone, shares its connections, and lives on the tokio runtime of its caller. What is sent and
//! answered are the types of [`api`]; docs/http-api.md of the server tells each field.
//!
//! It does not receive callbacks (the crate `receiver` does), follow redirects, or look at proxy settings.
//!
//! Always true here: every call ends within [`Options::deadline`]; a request is sent again only if that cannot do twice
//! what was asked for once; the key is in no `Debug` text, error or address.

#![warn(missing_docs)]

mod batch;
mod changes;
mod clock;
mod error;
mod options;
mod pages;
mod retry;
mod runs;
mod schedules;
mod tag;
mod tenants;
mod transport;

use std::sync::Arc;

pub use api;
pub use api::{
    AuditEntry, BatchLine, CancelResult, Cancelled, DryRun, FieldError, Key, KeyMade, KeyRequest, Problem, Quota,
    QuotaSheet, Quotas, Role, Run, RunState, Schedule, SchedulePage, SchedulePatch, ScheduleRequest, ScheduleState,
    Secret, SigningSecret, SigningSecretMade, Tenant, TenantMade, Time,
};
pub use changes::{Condition, Updated};
pub use error::{Error, Refused};
pub use futures_util::{Stream, StreamExt, TryStreamExt};
pub use options::{Options, SetupError};
pub use rustls::pki_types::CertificateDer;
pub use schedules::{ListBy, Put};
pub use tag::{Tag, TagError};

/// What the server adds to a schedule that it was sent.
pub type ScheduleSummary = api::ScheduleSummary<'static>;

/// A handle to one server, as one key. Cheap to clone.
#[derive(Clone)]
pub struct Client(Arc<transport::Transport>);

impl Client {
    /// A client of the server at `url` (`http` or `https`, a path before `/v1` if it has one), with what goes after
    /// `Bearer`; white space around the key, as a file has, is not of it. Nothing is sent yet.
    ///
    /// # Errors
    /// [`SetupError`], if one of the three cannot be used.
    pub fn new(url: &str, key: &str, options: Options) -> Result<Self, SetupError> {
        Ok(Client(Arc::new(transport::Transport::new(url, key, options)?)))
    }

    /// Where requests go.
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
