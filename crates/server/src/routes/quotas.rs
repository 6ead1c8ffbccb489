//! Routes about quotas. A tenant's admins change its quotas up to the ceilings. Operators change quotas and ceilings.

#[cfg(test)]
mod tests;

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use domain::{Quota, Quotas, Retention, Tenant};
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
    let changed = change_settings(&app, &tenant, &key, "quotas.update", |tenant| {
        check_retention(tenant, &requested, app.options.history)?;
        set_quotas(tenant, &requested)
    })
    .await?;
    Ok(wire::json(StatusCode::OK, &sheet_of(&changed, &usage)))
}

/// Rejects a retention that is longer than that of a tenant without a class, unless an operator has set a ceiling. Each
/// tenant without a ceiling therefore costs at most the storage that the option of the server allows. Accepts the class
/// that the tenant already has, so that an admin can send all quotas back.
fn check_retention(tenant: &Tenant, requested: &api::Quotas, history: Duration) -> Result<(), Rejected> {
    let ceiling = tenant.ceilings.get(Quota::RetentionDays);
    let before = tenant.quotas.get(Quota::RetentionDays);
    let is_bounded = |days: &u32| ceiling.is_none() && before != Some(*days);
    let days = requested.get(&api::Quota::RetentionDays).copied().flatten().filter(is_bounded);
    match days.and_then(Retention::from_days) {
        Some(class) if class.time() > history => {
            let detail = format!(
                "`retention_days` may be at most {} as long as it has no ceiling; an operator can set one",
                history.as_secs() / 86_400
            );
            Err(reject(Code::QuotaCeiling, detail))
        }
        _ => Ok(()),
    }
}

/// Rejects numbers of days that are no class of retention.
fn check_class(requested: &api::Quotas) -> Result<(), Rejected> {
    match requested.get(&api::Quota::RetentionDays).copied().flatten() {
        Some(days) if Retention::from_days(days).is_none() => {
            Err(reject(Code::InvalidRequest, format!("`retention_days` must be 1, 7, 30 or 90, and not {days}")))
        }
        _ => Ok(()),
    }
}

pub(super) fn set_quotas(tenant: &mut Tenant, requested: &api::Quotas) -> Result<(), Rejected> {
    check_class(requested)?;
    for (quota, number) in requested {
        tenant.quotas.set(quota_from(*quota), *number);
    }
    let Some(above) = tenant.quotas.first_above(&tenant.ceilings) else { return Ok(()) };
    let ceiling = tenant.ceilings.get(above).expect("a quota above its ceiling has a ceiling");
    let detail = format!("`{}` may be at most {ceiling}; an operator can raise the ceiling", above.name());
    Err(reject(Code::QuotaCeiling, detail))
}

/// Sets ceilings of a tenant's quotas, and lowers each quota that exceeds its ceiling to this ceiling.
pub(super) fn set_ceilings(tenant: &mut Tenant, requested: &api::Quotas) -> Result<(), Rejected> {
    check_class(requested)?;
    for (quota, number) in requested {
        tenant.ceilings.set(quota_from(*quota), *number);
    }
    tenant.quotas = tenant.quotas.lowered_to(&tenant.ceilings);
    Ok(())
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
        Quota::RetentionDays => api::Quota::RetentionDays,
    }
}

fn quota_from(quota: api::Quota) -> Quota {
    let same = |known: &Quota| quota_of(*known) == quota;
    Quota::ALL.into_iter().find(same).expect("the domain has each quota of the API")
}
