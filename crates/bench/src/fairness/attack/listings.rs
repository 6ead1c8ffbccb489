//! Listings that read many schedules and find none.

use super::{Attack, Stage, flood};
use crate::batch;
use crate::create::schedules_far;
use crate::tenant::unlimited_except;

/// Number of schedules that each listing reads.
const SCHEDULES: u64 = 20_000;

pub(super) async fn start(stage: &Stage<'_>) -> anyhow::Result<Attack> {
    let tenant = stage.tenant("listings", unlimited_except(None)).await?;
    let head = tenant.head("application/x-ndjson");
    batch::create_all(stage.runtime, head.clone(), schedules_far(stage.runtime), SCHEDULES).await?;
    Ok(flood::start(stage, "listings", &head, "GET", "/v1/schedules?state=cancelled&limit=1000", b""))
}
