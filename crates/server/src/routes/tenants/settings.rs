//! Tenant settings that operators and admins change, and the merge of a patch into them (RFC 7396).

use domain::egress::{NETWORKS_MAX, TOPICS_MAX};
use domain::{ApiKey, Egress, Role, Tenant};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::change;
use crate::rejection::{Code, Rejected, reject};
use crate::state::AppState;

/// Body of `PATCH /v1/tenants/{tenant}`; see [`api::TenantPatch`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::routes) struct Patch {
    #[serde(default)]
    pub(super) quotas: api::Quotas,
    #[serde(default)]
    pub(super) ceilings: api::Quotas,
    /// Changes of the egress policy. The server merges them into the current policy. The value `null` restores the
    /// default of a field or of the whole policy.
    #[serde(default = "empty_object")]
    pub(super) egress: Value,
    /// New value of the setting; `None` keeps the present value.
    #[serde(default, deserialize_with = "setting")]
    pub(super) excerpts: Option<bool>,
}

impl Patch {
    /// Returns an error if the key may not change the settings that the patch contains. An admin of the tenant may
    /// change only `excerpts`.
    pub(super) fn authorize(&self, key: &ApiKey) -> Result<(), Rejected> {
        let Patch { quotas, ceilings, egress, excerpts } = self;
        let is_of_admins = excerpts.is_some() && quotas.is_empty() && ceilings.is_empty() && *egress == empty_object();
        if key.role == Role::Operator || is_of_admins {
            return Ok(());
        }
        let detail = "the key has the role tenant admin, which may change only `excerpts` here; change quotas with PATCH \
                      /v1/quotas, and use a key with the role service operator for ceilings and egress";
        Err(reject(Code::RoleForbidden, detail))
    }
}

/// Reads a setting that is present. The value `null` restores the default (RFC 7396).
fn setting<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    Ok(Some(Option::deserialize(deserializer)?.unwrap_or(false)))
}

fn empty_object() -> Value {
    Value::Object(serde_json::Map::new())
}

/// Changes the settings of a tenant, and returns the changed tenant.
pub(in crate::routes) async fn change_settings(
    app: &AppState,
    tenant: &Tenant,
    actor: &ApiKey,
    action: &'static str,
    mut edit: impl FnMut(&mut Tenant) -> Result<(), Rejected>,
) -> Result<Tenant, Rejected> {
    if tenant.id == Tenant::OPERATOR {
        return Err(reject(Code::InvalidRequest, "the tenant `operator` has no schedules, and therefore no settings"));
    }
    change(app, tenant.id, &actor.id, action, |tenant| {
        let before = tenant.clone();
        edit(tenant)?;
        tenant.grow_pollers(app.options.tenant_pollers);
        Ok((differences(&before, tenant), Tenant { version: tenant.version + 1, ..tenant.clone() }))
    })
    .await
}

/// Lists the differences between two versions of a tenant for the audit log, such as `pending_max 10 -> 20`.
fn differences(before: &Tenant, after: &Tenant) -> String {
    let text = |number: Option<u32>| number.map_or("none".to_owned(), |number| number.to_string());
    let mut differences = Vec::new();
    for (kind, before, after) in [("", before.quotas, after.quotas), (" ceiling", before.ceilings, after.ceilings)] {
        let changed = before.iter().zip(after.iter()).filter(|(before, after)| before != after);
        differences.extend(changed.map(|((quota, before), (_, after))| {
            format!("{}{kind} {} -> {}", quota.name(), text(before), text(after))
        }));
    }
    if before.egress != after.egress {
        let text =
            |tenant| serde_json::to_string(&egress_of(tenant)).expect("an egress policy can be serialized to JSON");
        differences.push(format!("egress {} -> {}", text(before), text(after)));
    }
    if before.excerpts != after.excerpts {
        differences.push(format!("excerpts {} -> {}", before.excerpts, after.excerpts));
    }
    differences.join(", ")
}

pub(super) fn egress_of(tenant: &Tenant) -> api::Egress {
    let Egress { allow, allow_networks, forbid_http, allow_topics } = &tenant.egress;
    api::Egress {
        allow: allow.iter().map(|class| class.name().to_owned()).collect(),
        allow_networks: allow_networks.iter().map(ToString::to_string).collect(),
        forbid_http: *forbid_http,
        allow_topics: allow_topics.iter().map(ToString::to_string).collect(),
    }
}

/// Changes the fields of the tenant's egress policy that `patch` contains. The value `null` restores the default of a
/// field or of the whole policy.
pub(super) fn merge_egress(tenant: &mut Tenant, patch: &Value) -> Result<(), Rejected> {
    let mut egress = serde_json::to_value(egress_of(tenant)).expect("an egress policy can be serialized to JSON");
    match patch {
        Value::Null => egress = empty_object(),
        patch => merge_into(&mut egress, patch, "/egress")?,
    }
    let rejected = |error: serde_json::Error| reject(Code::InvalidRequest, error.to_string());
    let egress: api::Egress = serde_json::from_value(egress).map_err(rejected)?;
    tenant.egress = egress_from(&egress)?;
    Ok(())
}

/// Merges `patch` into `target`, which contains all settings. Returns an error if `patch` contains a name that `target`
/// lacks, even if the value is `null`.
fn merge_into(target: &mut Value, patch: &Value, pointer: &str) -> Result<(), Rejected> {
    let Value::Object(target) = target else {
        *target = patch.clone();
        return Ok(());
    };
    let Value::Object(patch) = patch else {
        return Err(reject(Code::InvalidRequest, format!("{pointer} must be an object with the settings to change")));
    };
    for (name, value) in patch {
        let shown: String = name.chars().take(64).collect();
        let pointer = format!("{pointer}/{shown}");
        let present = target.get_mut(name);
        let present = present.ok_or_else(|| reject(Code::InvalidRequest, format!("unknown setting {pointer}")))?;
        match value {
            Value::Null => drop(target.remove(name)),
            value => merge_into(present, value, &pointer)?,
        }
    }
    Ok(())
}

pub(super) fn egress_from(egress: &api::Egress) -> Result<Egress, Rejected> {
    let rejected = |field: &str, value: &str, error: String| {
        let shown: String = value.chars().take(64).collect();
        reject(Code::InvalidRequest, format!("egress.{field}: {shown:?}: {error}"))
    };
    if egress.allow_networks.len() > NETWORKS_MAX {
        return Err(reject(
            Code::InvalidRequest,
            format!("egress.allow_networks exceeds the limit of {NETWORKS_MAX} networks"),
        ));
    }
    if egress.allow_topics.len() > TOPICS_MAX {
        return Err(reject(
            Code::InvalidRequest,
            format!("egress.allow_topics exceeds the limit of {TOPICS_MAX} patterns"),
        ));
    }
    let topic = |text: &String| text.parse().map_err(|error| rejected("allow_topics", text, format!("{error}")));
    let class = |name: &String| name.parse().map_err(|error| rejected("allow", name, format!("{error}")));
    let network = |text: &String| text.parse().map_err(|error| rejected("allow_networks", text, format!("{error}")));
    Ok(Egress {
        allow: egress.allow.iter().map(class).collect::<Result<_, Rejected>>()?,
        allow_networks: egress.allow_networks.iter().map(network).collect::<Result<_, Rejected>>()?,
        forbid_http: egress.forbid_http,
        allow_topics: egress.allow_topics.iter().map(topic).collect::<Result<_, Rejected>>()?,
    })
}
