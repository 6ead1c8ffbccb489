//! Cancellations, which every member may make. One statement cancels the schedules of all waiting calls, and locks only
//! these schedules.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::{Author, Incarnation, PastTiming, Schedule, ScheduleId, Status, TenantId, TimingEnd};
use postgres_client::Failure;
use postgres_client::tokio_postgres::Row;
use postgres_client::tokio_postgres::types::ToSql;
use store::{Cancellation, CancellationResult, StoreError};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connections::query;
use crate::engine::Inner;
use crate::rows::status_number;
use crate::{gather, past_timings};

/// Maximum number of schedules that one statement cancels.
const NAMES_MAX: usize = 1_000;
/// Maximum number of attempts for a statement that conflicts with another transaction.
const TRIES: usize = 5;

/// Cancels the schedules with the incarnations $1 that still have the revisions $4, with the same effect as
/// [`store::Change::Cancel`], and writes the past timings $6. If $7 is true, also cancels the schedules that have
/// another revision, without a past timing. Returns the cancelled schedules.
const CANCEL: &str = "with held as (
        select s.incarnation, i.revision, i.tenant, i.value
        from reveille.schedule s
        join unnest($1::uuid[], $4::bigint[], $5::bigint[], $6::bytea[]) as i (incarnation, revision, tenant, value)
            on s.incarnation = i.incarnation
        where s.status <> $2
        order by s.incarnation for no key update of s
    ), cancelled as (
        update reveille.schedule s set status = $2, revision = s.revision + 1, next = null, ended_at = $3
        from held where s.incarnation = held.incarnation and (s.revision = held.revision or $7) and s.status <> $2
        returning s.incarnation, s.revision
    ), past as (
        insert into reveille.past_timing (incarnation, revision, tenant, value, written_at)
        select h.incarnation, h.revision, h.tenant, h.value, $3
        from held h join cancelled c on c.incarnation = h.incarnation and c.revision = h.revision + 1
        on conflict (incarnation, revision) do nothing
    )
    select incarnation from cancelled";

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
        let marks: Vec<Cancellation> = calls.iter().flat_map(|call| &call.work).cloned().collect();
        match self.cancel(&marks).await {
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

    async fn cancel(&self, marks: &[Cancellation]) -> Result<Vec<CancellationResult>, StoreError> {
        let names: Vec<(TenantId, ScheduleId)> = marks.iter().map(|mark| (mark.tenant, mark.id.clone())).collect();
        let found = self.get(&names).await?;
        let mut open: BTreeMap<Incarnation, (Arc<Schedule>, Option<Author>)> = BTreeMap::new();
        for (schedule, mark) in found.iter().zip(marks) {
            if let Some(schedule) = schedule.as_ref().filter(|schedule| schedule.status != Status::Cancelled) {
                open.entry(schedule.incarnation).or_insert_with(|| (schedule.clone(), mark.author.clone()));
            }
        }
        self.cancel_open(open).await?;
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

    /// Cancels these schedules. If a concurrent change ended the revision of a schedule, reads the schedule again, so
    /// that the past timing belongs to the revision that the cancellation ends. The last attempt cancels a schedule
    /// whatever its revision is: a cancellation without a past timing is better than none.
    async fn cancel_open(
        &self,
        mut open: BTreeMap<Incarnation, (Arc<Schedule>, Option<Author>)>,
    ) -> Result<(), StoreError> {
        for tries_left in (0..TRIES).rev() {
            let timings = open.values().map(|(schedule, author)| past_timing_of(schedule, author.as_ref()));
            let written = self.write_cancelled(timings.collect(), tries_left == 0).await;
            for row in written.map_err(|failure| self.record_failure(failure))? {
                open.remove(&Incarnation(row.get::<_, Uuid>(0).as_u128()));
            }
            if open.is_empty() {
                break;
            }
            let incarnations: Vec<Incarnation> = open.keys().copied().collect();
            for (incarnation, schedule) in incarnations.iter().zip(self.load(incarnations.clone()).await?) {
                match schedule.filter(|schedule| schedule.status != Status::Cancelled) {
                    Some(schedule) => drop(open.get_mut(incarnation).map(|(known, _)| *known = schedule)),
                    None => drop(open.remove(incarnation)),
                }
            }
        }
        Ok(())
    }

    async fn write_cancelled(&self, timings: past_timings::Columns, is_forced: bool) -> Result<Vec<Row>, Failure> {
        let past_timings::Columns { incarnations, revisions, tenants, values } = &timings;
        let mut tries_left = TRIES;
        loop {
            let guard = self.owners.acquire().await?;
            let cancelled = status_number(Status::Cancelled);
            let now = self.runtime.now().as_millis();
            let parameters: [&(dyn ToSql + Sync); 7] =
                [incarnations, &cancelled, &now, revisions, tenants, values, &is_forced];
            let tried = query(guard.session(), CANCEL, &parameters).await;
            tries_left -= 1;
            match tried {
                Err(failure) if failure.is_conflict() && tries_left > 0 => {}
                tried => return tried,
            }
        }
    }
}

/// Returns the past timing that a cancellation of `schedule` writes.
fn past_timing_of(schedule: &Schedule, author: Option<&Author>) -> (TenantId, PastTiming) {
    let timing = PastTiming {
        edition: schedule.edition(),
        when: schedule.spec.when.clone(),
        from: schedule.updated_at,
        until: author.map(|author| author.at),
        end: TimingEnd::Cancelled,
        by: author.and_then(|author| author.key.clone()),
    };
    (schedule.tenant, timing)
}
