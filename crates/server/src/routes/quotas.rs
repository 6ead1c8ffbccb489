//! Routes about quotas. A tenant's admins change its quotas up to the ceilings. Operators change quotas and ceilings.

#[cfg(test)]
mod tests;

use axum::extract::State;
use axum::http::StatusCode;
use domain::{Quota, Quotas, Tenant};
use store::Usage;

use super::tenants::settings::change_settings;
use crate::auth::Caller;
use crate::extract::JsonBody;
use crate::rejection::{Code, HandlerResult, Rejected, reject};
use crate::state::App;
use crate::wire;

/// Returns the quotas and the usage of the caller's tenant.
pub(super) async fn get(State(app): App, Caller { tenant, .. }: Caller) -> HandlerResult {
    let usage = app.tenants.usage(tenant.id).await?;
    Ok(wire::json(StatusCode::OK, &sheet_of(&tenant, &usage)))
}

/// Changes the quotas of the caller's tenant, up to their ceilings.
pub(super) async fn patch(
    State(app): App,
    Caller { tenant, key }: Caller,
    JsonBody(requested): JsonBody<api::Quotas>,
) -> HandlerResult {
    // If the usage is not readable, the request fails before it changes anything.
    let usage = app.tenants.usage(tenant.id).await?;
    let changed =
        change_settings(&app, &tenant, &key, "quotas.update", |tenant| set_quotas(tenant, &requested)).await?;
    Ok(wire::json(StatusCode::OK, &sheet_of(&changed, &usage)))
}

pub(super) fn set_quotas(tenant: &mut Tenant, requested: &api::Quotas) -> Result<(), Rejected> {
    for (quota, number) in requested {
        tenant.quotas.set(quota_from(*quota), *number);
    }
    let Some(above) = tenant.quotas.first_above(&tenant.ceilings) else { return Ok(()) };
    let ceiling = tenant.ceilings.get(above).expect("a quota above its ceiling has a ceiling");
    let detail = format!("`{}` may be at most {ceiling}; an operator can raise the ceiling", above.name());
    Err(reject(Code::QuotaCeiling, detail))
}

/// Sets ceilings of a tenant's quotas, and lowers each quota that exceeds its ceiling to this ceiling.
pub(super) fn set_ceilings(tenant: &mut Tenant, requested: &api::Quotas) {
    for (quota, number) in requested {
        tenant.ceilings.set(quota_from(*quota), *number);
    }
    tenant.quotas = tenant.quotas.lowered_to(&tenant.ceilings);
}

pub(super) fn sheet_of(tenant: &Tenant, usage: &Usage) -> api::QuotaSheet {
    let numbers = |quotas: &Quotas| quotas.iter().map(|(quota, number)| (quota_of(quota), number)).collect();
    let usage = usage_of(usage);
    api::QuotaSheet { quotas: numbers(&tenant.quotas), ceilings: numbers(&tenant.ceilings), usage }
}

fn usage_of(usage: &Usage) -> api::Usage {
    let Usage { active, ended, cancelled, bytes } = *usage;
    api::Usage { active, ended, cancelled, stored_bytes: bytes }
}

fn quota_of(quota: Quota) -> api::Quota {
    match quota {
        Quota::CallbacksPerMinute => api::Quota::CallbacksPerMinute,
        Quota::CreatesPerSecond => api::Quota::CreatesPerSecond,
        Quota::PendingMax => api::Quota::PendingMax,
        Quota::PayloadBytesMax => api::Quota::PayloadBytesMax,
        Quota::HorizonDays => api::Quota::HorizonDays,
        Quota::InFlightMax => api::Quota::InFlightMax,
        Quota::InFlightPerTargetMax => api::Quota::InFlightPerTargetMax,
        Quota::CallbacksPerSecondPerTarget => api::Quota::CallbacksPerSecondPerTarget,
        Quota::StoredMibMax => api::Quota::StoredMibMax,
        Quota::HttpInFlightMax => api::Quota::HttpInFlightMax,
        Quota::HttpCallbacksPerSecond => api::Quota::HttpCallbacksPerSecond,
        Quota::BusInFlightMax => api::Quota::BusInFlightMax,
        Quota::BusCallbacksPerSecond => api::Quota::BusCallbacksPerSecond,
    }
}

fn quota_from(quota: api::Quota) -> Quota {
    let same = |known: &Quota| quota_of(*known) == quota;
    Quota::ALL.into_iter().find(same).expect("the domain has each quota of the API")
}
