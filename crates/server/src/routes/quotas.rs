//! What each tenant may use: its admins change that up to their ceilings, operators the ceilings too.

#[cfg(test)]
mod tests;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use domain::{Quota, Quotas, Tenant};

use super::tenants::settings::change_settings;
use crate::answer;
use crate::auth::Caller;
use crate::extract::JsonBody;
use crate::refusal::{Answered, Code, Refused, refuse};
use crate::state::App;

/// Of the key's own tenant.
pub(super) async fn get(Caller { tenant, .. }: Caller) -> Response<Body> {
    answer::json(StatusCode::OK, &sheet_of(&tenant))
}

/// Of the key's own tenant, up to the ceilings.
pub(super) async fn patch(
    State(app): App,
    Caller { tenant, key }: Caller,
    JsonBody(wanted): JsonBody<api::Quotas>,
) -> Answered {
    let changed = change_settings(&app, &tenant, &key, "quotas.update", |tenant| set_quotas(tenant, &wanted)).await?;
    Ok(answer::json(StatusCode::OK, &sheet_of(&changed)))
}

pub(super) fn set_quotas(tenant: &mut Tenant, wanted: &api::Quotas) -> Result<(), Refused> {
    for (quota, number) in wanted {
        tenant.quotas.set(quota_from(*quota), *number);
    }
    let Some(above) = tenant.quotas.first_above(&tenant.ceilings) else { return Ok(()) };
    let ceiling = tenant.ceilings.get(above).expect("what is above a ceiling has one");
    let detail = format!("`{}` may be at most {ceiling}; an operator can raise that", above.name());
    Err(refuse(Code::QuotaCeiling, detail))
}

/// A quota that is above its new ceiling is lowered to it.
pub(super) fn set_ceilings(tenant: &mut Tenant, wanted: &api::Quotas) {
    for (quota, number) in wanted {
        tenant.ceilings.set(quota_from(*quota), *number);
    }
    tenant.quotas = tenant.quotas.lowered_to(&tenant.ceilings);
}

pub(super) fn sheet_of(tenant: &Tenant) -> api::QuotaSheet {
    let numbers = |quotas: &Quotas| quotas.iter().map(|(quota, number)| (quota_of(quota), number)).collect();
    api::QuotaSheet { quotas: numbers(&tenant.quotas), ceilings: numbers(&tenant.ceilings) }
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
    }
}

fn quota_from(quota: api::Quota) -> Quota {
    let same = |known: &Quota| quota_of(*known) == quota;
    Quota::ALL.into_iter().find(same).expect("each quota of the API is one of ours")
}
