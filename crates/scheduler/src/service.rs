//! What the HTTP layer, and any other front, asks of the scheduler.

use std::sync::Arc;

use domain::occurrence::Run;
use domain::{Occurrence, Schedule, ScheduleId, Spec, TenantId};
use store::{ApiKey, Health, StoreError, Tenant};

/// A request for a new schedule; its spec has been checked.
#[derive(Clone, Debug)]
pub struct Create {
    pub tenant: Arc<Tenant>,
    /// `None`: an id is made.
    pub id: Option<ScheduleId>,
    pub spec: Spec,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CreateRefusal {
    #[error("a schedule of this id exists")]
    Exists,
    #[error("the schedule has no occurrence after the present instant")]
    NeverFires,
}

#[derive(Clone, PartialEq, Debug)]
pub struct PutAnswer {
    pub schedule: Arc<Schedule>,
    /// There was no live schedule of this id.
    pub created: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelAnswer {
    NotFound,
    /// It will never fire (again).
    Cancelled,
    /// An attempt is in flight; no other will start.
    TooLate,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RedriveAnswer {
    /// No such run of this tenant.
    NotFound,
    /// It is not a dead letter, or it was redriven before.
    NotDead,
    Redriven(Occurrence),
}

/// The contract, which `Scheduler` keeps. Every answer says only what is durable.
#[expect(
    async_fn_in_trait,
    reason = "a list of signatures while the parts are being built; Scheduler has them as inherent methods"
)]
pub trait Contract {
    /// The tenant and key that `key_id` names.
    fn key(&self, key_id: &str) -> Option<(Arc<Tenant>, ApiKey)>;
    /// One answer per request, in order; several requests of one call share its commits.
    async fn create(&self, requests: Vec<Create>) -> Result<Vec<Result<Arc<Schedule>, CreateRefusal>>, StoreError>;
    async fn put(&self, request: Create) -> Result<Result<PutAnswer, CreateRefusal>, StoreError>;
    async fn get(&self, tenant: TenantId, id: ScheduleId) -> Result<Option<Arc<Schedule>>, StoreError>;
    async fn cancel(&self, tenant: TenantId, id: ScheduleId) -> Result<CancelAnswer, StoreError>;
    /// `None` if there is no such schedule.
    async fn runs(
        &self,
        tenant: TenantId,
        id: ScheduleId,
        after: Option<Occurrence>,
        limit: usize,
    ) -> Result<Option<Vec<Run>>, StoreError>;
    async fn dead_letters(
        &self,
        tenant: TenantId,
        after: Option<Occurrence>,
        limit: usize,
    ) -> Result<Vec<Run>, StoreError>;
    async fn redrive(&self, tenant: TenantId, of: Occurrence) -> Result<RedriveAnswer, StoreError>;
    fn health(&self) -> Health;
    /// Prometheus text exposition.
    fn metrics_text(&self) -> String;
}
