//! New schedules with the largest payloads, as many as the default quotas allow. They fall due long after the trial.

use domain::limits::Limits;
use reveille_client::Quotas;

use super::{Attack, Stage, flood};
use crate::create::{FAR_URL, schedules_far};

pub(super) async fn start(stage: &Stage<'_>) -> anyhow::Result<Attack> {
    let tenant = stage.tenant("bytes", Quotas::new()).await?;
    let far = schedules_far(stage.runtime);
    // The payload is a JSON text, so its two quotation marks count toward the limit.
    let text = "x".repeat(Limits::default().payload_bytes_max - 2);
    let body = format!(r#"{{"at":"{}","target":{{"http":{{"url":"{}"}}}},"payload":"{text}"}}"#, far.at(0), FAR_URL);
    Ok(flood::start(stage, "bytes", &tenant.head("application/json"), "POST", "/v1/schedules", body.as_bytes()))
}
