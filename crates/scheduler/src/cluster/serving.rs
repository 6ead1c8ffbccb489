//! Handler for the operations that other members request from this member.

use std::sync::Arc;

use bytes::Bytes;
use domain::{ShardId, TenantId};
use store::StoreError;
use stored::Malformed;

use crate::changes::Changes;
use crate::cluster::assignment::Cluster;
use crate::cluster::operations::{
    Cancel, CancelIf, CancelIfBy, CreateNamed, Named, Nudge, Operation, Put, PutBy, PutIf, PutIfBy, Redrive, Release,
    decode_request, encode_response,
};
use crate::cluster::ownership::receive_outcome;
use crate::cluster::peers::InvalidRequest;
use crate::progress::progress;
use crate::requests::{
    AttemptOutcome, AuditReport, AuditRequest, Create, CreateRejection, OwnerError, PutResponse, Waiting,
};
use crate::shared::Shared;
use crate::tenants::Tenants;

pub(crate) struct Serving {
    pub(crate) shared: Arc<Shared>,
    pub(crate) changes: Arc<Changes>,
    pub(crate) cluster: Arc<Cluster>,
}

impl Serving {
    /// Implements [`crate::Scheduler::handle`].
    pub(crate) async fn handle(&self, operation: &str, request: &[u8]) -> Result<Bytes, InvalidRequest> {
        let changes = &self.changes;
        let response = match operation {
            CreateNamed::NAME => {
                let create = async |CreateNamed(all)| {
                    let mut requests = Vec::with_capacity(all.len());
                    for named in all {
                        requests.push(self.create_of(named).await?);
                    }
                    changes.create(requests).await
                };
                respond(request, create).await
            }
            Put::NAME => respond(request, async |put| self.put(put, None).await).await,
            PutBy::NAME => respond(request, async |PutBy { put, by }| self.put(put, Some(by)).await).await,
            PutIf::NAME => respond(request, async |put| self.put_if(put, None).await).await,
            PutIfBy::NAME => respond(request, async |PutIfBy { put, by }| self.put_if(put, Some(by)).await).await,
            Cancel::NAME => {
                let cancel =
                    async |Cancel { poller, incarnation, applied }| changes.cancel(poller, incarnation, applied).await;
                respond(request, cancel).await
            }
            CancelIf::NAME => {
                respond(request, async |CancelIf { poller, edition }| changes.cancel_if(poller, edition, None).await)
                    .await
            }
            CancelIfBy::NAME => {
                let cancel = async |CancelIfBy { cancel: CancelIf { poller, edition }, by }| {
                    changes.cancel_if(poller, edition, Some(by)).await
                };
                respond(request, cancel).await
            }
            Redrive::NAME => respond(request, async |Redrive { tenant, of }| changes.redrive(tenant, of).await).await,
            Release::NAME => respond(request, async |release| self.release(release).await).await,
            AttemptOutcome::NAME => {
                respond(request, async |outcome| receive_outcome(&self.shared, outcome).await).await
            }
            Waiting::NAME => respond(request, async |waiting| progress(&self.shared, waiting).await).await,
            AuditRequest::NAME => respond(request, async |AuditRequest { tenant }| self.audit(tenant)).await,
            Nudge::NAME => {
                let nudge = async |Nudge| {
                    self.shared.nudge.notify_one();
                    Ok(())
                };
                respond(request, nudge).await
            }
            _ => return Err(InvalidRequest::UnknownOperation),
        };
        Ok(response?)
    }

    async fn put(
        &self,
        Put(named): Put,
        by: Option<String>,
    ) -> Result<Result<PutResponse, CreateRejection>, OwnerError> {
        let request = self.create_of(named).await?;
        self.changes.put(Create { by, ..request }).await
    }

    async fn put_if(
        &self,
        PutIf { named, seen, timing }: PutIf,
        by: Option<String>,
    ) -> Result<Option<Result<PutResponse, CreateRejection>>, OwnerError> {
        let request = self.create_of(named).await?;
        self.changes.put_if(Create { by, ..request }, seen, timing).await
    }

    /// Returns the result of this member's audits.
    fn audit(&self, tenant: Option<TenantId>) -> Result<AuditReport, OwnerError> {
        if self.cluster.is_leader() { Ok(self.shared.audits.report(tenant)) } else { Err(OwnerError::NotOwned) }
    }

    async fn release(&self, Release { member, shards }: Release) -> Result<Vec<ShardId>, OwnerError> {
        let released = self.cluster.release_for(member, &shards).await;
        Ok(released.map_err(|error| StoreError::Unavailable(error.to_string()))?)
    }

    /// Converts a received create request into a [`Create`] with its tenant. Reads the tenants from the store again if
    /// this member does not know the tenant yet.
    async fn create_of(&self, named: Named) -> Result<Create, OwnerError> {
        let Named { tenant, id, incarnation, spec } = named;
        if self.shared.tenants.get(tenant).is_none() {
            Tenants::new(self.shared.clone()).refresh().await?;
        }
        let tenant = self.shared.tenants.get(tenant).ok_or(OwnerError::NotOwned)?;
        Ok(Create { tenant, id: Some(id), incarnation, spec, by: None })
    }
}

async fn respond<O: Operation>(
    request: &[u8],
    run: impl AsyncFnOnce(O) -> Result<O::Answer, OwnerError>,
) -> Result<Bytes, Malformed> {
    let operation = decode_request(request)?;
    Ok(encode_response::<O>(&run(operation).await))
}
