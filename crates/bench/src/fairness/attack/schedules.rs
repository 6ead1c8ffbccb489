//! Schedules of an attacking tenant. The bench cancels them when the attack ends.

use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use reveille_client::{Error, ScheduleRequest};
use runtime::Runtime;

use crate::tenant::Tenant;

/// Number of requests in progress while the attack creates or cancels schedules.
const REQUESTS: usize = 64;
/// Time by which the timeout of a callback exceeds the time that the callback takes.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(5);

pub(super) struct AttackSchedules {
    pub(super) tenant: Tenant,
    pub(super) ids: Vec<String>,
    /// Longest time that a callback in flight takes.
    pub(super) takes: Duration,
}

/// Recurring schedules. Their due instants are spread over the interval.
pub(super) struct Series {
    pub(super) count: u32,
    pub(super) every: Duration,
    /// Longest time that a callback in flight takes.
    pub(super) takes: Duration,
}

impl AttackSchedules {
    /// Creates a series of schedules for the targets that `url` returns for the numbers from 0 on.
    ///
    /// # Errors
    /// Returns an error if the server rejects a schedule.
    pub(super) async fn create(
        runtime: &Runtime,
        tenant: Tenant,
        series: Series,
        url: impl Fn(u64) -> String,
    ) -> anyhow::Result<Self> {
        let Series { count, every, takes } = series;
        let (client, start) = (&tenant.client, runtime.monotonic());
        let requests = (0..count).map(|number| {
            let request = ScheduleRequest::every(every, url(u64::from(number))).timeout(takes + TIMEOUT_MARGIN);
            let create_at = start + every * number / count;
            async move {
                // The instant of the creation determines the due instants of the schedule.
                runtime.sleep_until(create_at).await;
                anyhow::Ok(client.create(&request).await?.id.into_owned())
            }
        });
        let ids = futures_util::stream::iter(requests).buffer_unordered(REQUESTS).try_collect().await?;
        Ok(AttackSchedules { tenant, ids, takes })
    }

    /// Cancels the schedules, and waits until their callbacks in flight have ended or timed out, so that the next run
    /// does not include them.
    ///
    /// # Errors
    /// Returns an error if the server does not respond to a request.
    pub(super) async fn end(self, runtime: &Runtime) -> anyhow::Result<()> {
        let requests = self.ids.iter().map(|id| self.cancel(id));
        futures_util::stream::iter(requests).buffer_unordered(REQUESTS).try_collect::<()>().await?;
        runtime.sleep(self.takes + TIMEOUT_MARGIN).await;
        Ok(())
    }

    /// Cancels a schedule. A schedule that has no further callback stays as it is.
    async fn cancel(&self, id: &str) -> Result<(), Error> {
        match self.tenant.client.cancel(id).await {
            Err(error) if error.status().is_none() => Err(error),
            Err(_) | Ok(_) => Ok(()),
        }
    }
}
