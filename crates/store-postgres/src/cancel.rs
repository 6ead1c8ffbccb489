//! Cancellations, which every member may make. One statement cancels the schedules of all waiting calls, and locks only
//! these schedules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::{Incarnation, Schedule, ScheduleId, Status, TenantId};
use postgres_client::Failure;
use store::{Cancellation, CancellationResult, StoreError};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connections::query;
use crate::engine::Inner;
use crate::gather;
use crate::rows::{status_number, uuid};

/// Maximum number of schedules that one statement cancels.
const NAMES_MAX: usize = 1_000;
/// Maximum number of attempts for a statement that conflicts with another transaction.
const TRIES: usize = 5;

/// Cancels the schedules with the incarnations $1, with the same effect as [`store::Change::Cancel`].
const CANCEL: &str = "with held as (
        select incarnation from reveille.schedule where incarnation = any($1::uuid[]) and status <> $2
        order by incarnation for no key update
    )
    update reveille.schedule s set status = $2, revision = s.revision + 1, next = null, ended_at = $3
    from held where s.incarnation = held.incarnation";

impl gather::Work for Vec<Cancellation> {
    fn rows(&self) -> usize {
        self.len()
    }

    fn bytes(&self) -> usize {
        0
    }
}

/// Runs the lane, a task that cancels the schedules of the waiting calls, until the store closes.
pub(crate) async fn lane(
    inner: Arc<Inner>,
    waiting: Arc<gather::Waiting<Vec<Cancellation>, Vec<CancellationResult>>>,
    stop: CancellationToken,
) {
    waiting.serve(NAMES_MAX, usize::MAX, &stop, |calls| Box::pin(inner.cancel_calls(calls))).await;
}

impl Inner {
    pub(crate) async fn append_cancellations(
        &self,
        marks: Vec<Cancellation>,
    ) -> Result<Vec<CancellationResult>, StoreError> {
        self.cancels.submit(&self.runtime, self.options.statement_timeout, marks).await
    }

    async fn cancel_calls(&self, calls: Vec<gather::Job<Vec<Cancellation>, Vec<CancellationResult>>>) {
        let names: Vec<(TenantId, ScheduleId)> =
            calls.iter().flat_map(|call| &call.work).map(|mark| (mark.tenant, mark.id.clone())).collect();
        match self.cancel(&names).await {
            Ok(marked) => {
                let mut marked = marked.into_iter();
                for call in calls {
                    let count = call.work.len();
                    call.respond(Ok(marked.by_ref().take(count).collect()));
                }
            }
            // If the store cannot read the schedule of one call, the other calls' cancellations must still succeed.
            Err(error) if calls.len() > 1 && !error.is_retryable() => {
                for call in calls {
                    Box::pin(self.cancel_calls(vec![call])).await;
                }
            }
            Err(error) => calls.into_iter().for_each(|call| call.respond(Err(error.clone()))),
        }
    }

    async fn cancel(&self, names: &[(TenantId, ScheduleId)]) -> Result<Vec<CancellationResult>, StoreError> {
        let found = self.get(names).await?;
        let open = found.iter().flatten().filter(|schedule| schedule.status != Status::Cancelled);
        let open: BTreeSet<Uuid> = open.map(|schedule| uuid(schedule.incarnation)).collect();
        if !open.is_empty() {
            self.write_cancelled(open.into_iter().collect()).await.map_err(|failure| self.record_failure(failure))?;
        }
        // A second cancellation of a schedule in the same batch observes the effect of the first cancellation.
        let mut cancelled: BTreeMap<Incarnation, Arc<Schedule>> = BTreeMap::new();
        let mut before = |schedule: Arc<Schedule>| {
            let left = || {
                let mut left = Schedule::clone(&schedule);
                if left.status != Status::Cancelled {
                    left.status = Status::Cancelled;
                    left.revision.0 += 1;
                    left.next = None;
                }
                Arc::new(left)
            };
            match cancelled.get(&schedule.incarnation) {
                Some(known) => known.clone(),
                None => {
                    cancelled.insert(schedule.incarnation, left());
                    schedule
                }
            }
        };
        Ok(found
            .into_iter()
            .map(|found| CancellationResult { before: found.map(&mut before), applied: true })
            .collect())
    }

    async fn write_cancelled(&self, incarnations: Vec<Uuid>) -> Result<(), Failure> {
        let mut tries_left = TRIES;
        loop {
            let guard = self.owners.acquire().await?;
            let cancelled = status_number(Status::Cancelled);
            let now = self.runtime.now().as_millis();
            let tried = query(guard.session(), CANCEL, &[&incarnations, &cancelled, &now]).await;
            tries_left -= 1;
            match tried {
                Err(failure) if failure.is_conflict() && tries_left > 0 => {}
                tried => return tried.map(|_| ()),
            }
        }
    }
}
