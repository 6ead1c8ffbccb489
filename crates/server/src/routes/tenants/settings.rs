//! What operators set about a tenant, and how a patch of it is merged (RFC 7396).

use domain::egress::NETWORKS_MAX;
use domain::{ApiKey, Egress, Tenant};
use serde::Deserialize;
use serde_json::Value;

use super::change;
use crate::refusal::{Code, Refused, refuse};
use crate::state::AppState;

/// `PATCH /v1/tenants/{tenant}`: see [`api::TenantPatch`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::routes) struct Patch {
    #[serde(default)]
    pub(super) quotas: api::Quotas,
    #[serde(default)]
    pub(super) ceilings: api::Quotas,
    /// Merged into what is there; `null` makes it the default.
    #[serde(default = "nothing")]
    pub(super) egress: Value,
}

fn nothing() -> Value {
    Value::Object(serde_json::Map::new())
}

/// The tenant as it is afterwards.
pub(in crate::routes) async fn change_settings(
    app: &AppState,
    tenant: &Tenant,
    actor: &ApiKey,
    action: &'static str,
    mut edit: impl FnMut(&mut Tenant) -> Result<(), Refused>,
) -> Result<Tenant, Refused> {
    if tenant.id == Tenant::OPERATOR {
        return Err(refuse(Code::InvalidRequest, "operators have no schedules, and so no settings"));
    }
    change(app, tenant.id, &actor.id, action, |tenant| {
        let before = tenant.clone();
        edit(tenant)?;
        tenant.grow_pollers(app.options.tenant_pollers);
        Ok((differences(&before, tenant), Tenant { version: tenant.version + 1, ..tenant.clone() }))
    })
    .await
}

/// As `pending_max 10 -> 20`, for the audit log.
fn differences(before: &Tenant, after: &Tenant) -> String {
    let text = |number: Option<u32>| number.map_or("none".to_owned(), |number| number.to_string());
    let mut told = Vec::new();
    for (what, before, after) in [("", before.quotas, after.quotas), (" ceiling", before.ceilings, after.ceilings)] {
        let changed = before.iter().zip(after.iter()).filter(|(before, after)| before != after);
        told.extend(changed.map(|((quota, before), (_, after))| {
            format!("{}{what} {} -> {}", quota.name(), text(before), text(after))
        }));
    }
    if before.egress != after.egress {
        let text = |tenant| serde_json::to_string(&egress_of(tenant)).expect("a policy is JSON");
        told.push(format!("egress {} -> {}", text(before), text(after)));
    }
    told.join(", ")
}

pub(super) fn egress_of(tenant: &Tenant) -> api::Egress {
    let Egress { allow, allow_networks, forbid_http } = &tenant.egress;
    api::Egress {
        allow: allow.iter().map(|class| class.name().to_owned()).collect(),
        allow_networks: allow_networks.iter().map(ToString::to_string).collect(),
        forbid_http: *forbid_http,
    }
}

/// Changes what `patch` names; `null` sets it to its default.
pub(super) fn merge_egress(tenant: &mut Tenant, patch: &Value) -> Result<(), Refused> {
    let mut egress = serde_json::to_value(egress_of(tenant)).expect("a policy is JSON");
    match patch {
        Value::Null => egress = nothing(),
        patch => merge_into(&mut egress, patch, "/egress")?,
    }
    let refused = |error: serde_json::Error| refuse(Code::InvalidRequest, error.to_string());
    let egress: api::Egress = serde_json::from_value(egress).map_err(refused)?;
    tenant.egress = egress_from(&egress)?;
    Ok(())
}

/// All settings are in `target`, so that a name that is not there is an error, `null` or not.
fn merge_into(target: &mut Value, patch: &Value, pointer: &str) -> Result<(), Refused> {
    let Value::Object(target) = target else {
        *target = patch.clone();
        return Ok(());
    };
    let Value::Object(patch) = patch else {
        return Err(refuse(Code::InvalidRequest, format!("{pointer} is an object of what is to be changed")));
    };
    for (name, value) in patch {
        let shown: String = name.chars().take(64).collect();
        let pointer = format!("{pointer}/{shown}");
        let present = target.get_mut(name);
        let present = present.ok_or_else(|| refuse(Code::InvalidRequest, format!("there is no setting {pointer}")))?;
        match value {
            Value::Null => drop(target.remove(name)),
            value => merge_into(present, value, &pointer)?,
        }
    }
    Ok(())
}

pub(super) fn egress_from(egress: &api::Egress) -> Result<Egress, Refused> {
    let refused = |field: &str, what: &str, why: String| {
        let shown: String = what.chars().take(64).collect();
        refuse(Code::InvalidRequest, format!("egress.{field}: {shown:?}: {why}"))
    };
    if egress.allow_networks.len() > NETWORKS_MAX {
        return Err(refuse(Code::InvalidRequest, format!("egress.allow_networks: at most {NETWORKS_MAX}")));
    }
    let class = |name: &String| name.parse().map_err(|error| refused("allow", name, format!("{error}")));
    let network = |text: &String| text.parse().map_err(|error| refused("allow_networks", text, format!("{error}")));
    Ok(Egress {
        allow: egress.allow.iter().map(class).collect::<Result<_, Refused>>()?,
        allow_networks: egress.allow_networks.iter().map(network).collect::<Result<_, Refused>>()?,
        forbid_http: egress.forbid_http,
    })
}
