//! Batches with an unknown field whose name is very long.

use super::{Attack, Stage, flood};
use crate::tenant::unlimited_except;

/// Length of the name. The line is shorter than the default of `--body-bytes-max`.
const NAME_BYTES: usize = 250_000;

pub(super) async fn start(stage: &Stage<'_>) -> anyhow::Result<Attack> {
    let tenant = stage.tenant("lines", unlimited_except(None)).await?;
    let body = format!("{{\"{}\":1}}\n", "x".repeat(NAME_BYTES)).into_bytes();
    Ok(flood::start(stage, "lines", &tenant.head("application/x-ndjson"), "POST", "/v1/schedules:batch", &body))
}
