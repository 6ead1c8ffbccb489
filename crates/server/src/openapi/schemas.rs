//! JSON Schemas: from the wire types, with the numbers and forms that this server holds requests to.

use domain::ScheduleId;
use domain::limits::Limits;
use schemars::generate::{Contract, SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::Options;
use crate::condition;
use crate::idempotency;
use crate::query::PAGE_LIMIT_MAX;
use crate::route::{Parameter, of, reference};

const ID: &str = "^[A-Za-z0-9_-]+$";

pub(super) struct Schemas {
    /// What is read may lack what has a default; what is written has it.
    pub(super) requests: SchemaGenerator,
    pub(super) answers: SchemaGenerator,
    limits: Limits,
}

impl Schemas {
    pub(super) fn new(options: &Options) -> Self {
        let generator = |contract: Contract| {
            let mut settings = SchemaSettings::draft2020_12();
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
            settings.contract = contract;
            settings.into_generator()
        };
        Schemas {
            requests: generator(Contract::Deserialize),
            answers: generator(Contract::Serialize),
            limits: options.limits.clone(),
        }
    }

    pub(super) fn path_parameter(&self, name: &str) -> Value {
        let (what, example) = match name {
            "tenant" => ("The tenant's name", "default"),
            _ => ("The id", "invoice-4711"),
        };
        let schema = json!({ "type": "string", "pattern": ID, "minLength": 1, "maxLength": ScheduleId::LEN_MAX });
        json!({ "name": name, "in": "path", "required": true, "description": what, "schema": schema, "example": example })
    }

    pub(super) fn parameter(&self, parameter: Parameter) -> Value {
        let instant = || json!({ "type": "string", "format": "date-time" });
        let (name, what, schema) = match parameter {
            Parameter::DeadLetter => (
                "dead_letter",
                "Only dead letters are listed over all schedules",
                json!({ "const": "true", "type": "string" }),
            ),
            Parameter::DryRun => {
                ("dry_run", "Check all of it, write nothing, and tell what would be", json!({ "type": "boolean" }))
            }
            Parameter::IdempotencyKey => {
                let schema =
                    json!({ "type": "string", "pattern": idempotency::PATTERN, "minLength": 1, "maxLength": 512 });
                ("Idempotency-Key", "The same answer for each request with this key and this body", schema)
            }
            Parameter::DueFrom => ("due_from", "The start, included, of what is due", instant()),
            Parameter::DueUntil => ("due_until", "The end, not included: at most 24 hours later", instant()),
            Parameter::IfMatch => {
                ("If-Match", "Only if the schedule's tag is one of these; `*`: only if there is one", tags())
            }
            Parameter::IfNoneMatch => {
                ("If-None-Match", "Only if the schedule's tag is none of these; `*`: only if there is none", tags())
            }
            Parameter::Label => {
                let length_max = 2 * self.limits.label_bytes_max + 1;
                let schema = json!({ "type": "string", "pattern": "^[^=]+=", "maxLength": length_max });
                ("label", "A label's name, `=` and its value", schema)
            }
            Parameter::Limit => {
                let schema = json!({ "type": "integer", "minimum": 1, "maximum": PAGE_LIMIT_MAX, "default": 100 });
                ("limit", "How many at most", schema)
            }
            Parameter::PageToken => {
                ("page_token", "The `next_page_token` of the page before", json!({ "type": "string" }))
            }
            Parameter::State => {
                let schema = json!({ "type": "string", "enum": ["active", "ended", "cancelled"] });
                ("state", "Those that are in this state", schema)
            }
        };
        let required = parameter == Parameter::DeadLetter;
        let place = if parameter.is_header() { "header" } else { "query" };
        json!({ "name": name, "in": place, "required": required, "description": what, "schema": schema })
    }

    /// All that was referred to, by name; `codes` are those of problems.
    pub(super) fn finish(mut self, codes: &[&str]) -> Map<String, Value> {
        // Told in text, and worth a form.
        of::<api::BatchLine<'_>>(&mut self.answers);
        of::<api::Egress>(&mut self.requests);
        let mut schemas = self.answers.take_definitions(true);
        schemas.extend(self.requests.take_definitions(true));
        let mut schemas: Map<String, Value> = schemas.into_iter().collect();
        let numbers = json!({ "type": ["integer", "null"], "minimum": 0, "maximum": u32::MAX });
        let quotas: Map<String, Value> =
            domain::Quota::ALL.into_iter().map(|quota| (quota.name().to_owned(), numbers.clone())).collect();
        schemas.insert(
            "Quotas".to_owned(),
            json!({
                "type": "object",
                "description": "A number for each, inclusive; `null`: as much as the service takes from anybody. \
                    In a request, what is not there stays as it is.",
                "properties": quotas,
                "additionalProperties": false,
            }),
        );
        for (name, field) in [
            ("QuotaSheet", "quotas"),
            ("QuotaSheet", "ceilings"),
            ("Tenant", "quotas"),
            ("Tenant", "ceilings"),
            ("TenantPatch", "quotas"),
            ("TenantPatch", "ceilings"),
            ("TenantRequest", "quotas"),
            ("TenantRequest", "ceilings"),
        ] {
            schemas[name]["properties"][field] = reference("Quotas");
        }
        schemas["Problem"]["properties"]["code"]["enum"] = json!(codes);
        limit_schedules(&mut schemas, &self.limits);
        limit_tenants(&mut schemas);
        schemas
    }
}

/// As RFC 9110 writes them.
fn tags() -> Value {
    json!({ "type": "string", "pattern": condition::PATTERN })
}

/// Adds to a field what its type does not say.
fn say(schemas: &mut Map<String, Value>, name: &str, field: &str, more: Value) {
    let known = &mut schemas[name]["properties"][field];
    assert!(known.is_object(), "{name} has the field {field}");
    let (Some(known), Value::Object(more)) = (known.as_object_mut(), more) else { return };
    known.extend(more);
}

fn limit_schedules(schemas: &mut Map<String, Value>, limits: &Limits) {
    let id = json!({ "pattern": ID, "minLength": 1, "maxLength": ScheduleId::LEN_MAX });
    let duration = json!({ "minLength": 2, "maxLength": 64, "examples": ["30s", "1h30m", "PT30S"] });
    say(schemas, "ScheduleRequest", "id", id);
    say(schemas, "ScheduleRequest", "at", json!({ "format": "date-time", "examples": ["2035-01-02T03:04:05Z"] }));
    say(schemas, "ScheduleRequest", "cron", json!({ "maxLength": 256, "examples": ["0 9 * * MON-FRI"] }));
    say(schemas, "ScheduleRequest", "every", duration.clone());
    let labels = json!({
        "maxProperties": limits.labels_max,
        "propertyNames": { "minLength": 1, "maxLength": limits.label_bytes_max },
        "additionalProperties": { "type": "string", "maxLength": limits.label_bytes_max },
    });
    say(schemas, "ScheduleRequest", "labels", labels);
    // `null` is as good as leaving one out.
    let one = |name: &str| json!({ "required": [name], "properties": { name: { "type": "string" } } });
    schemas["ScheduleRequest"]["oneOf"] = json!([one("at"), one("cron"), one("every")]);
    let url = json!({ "format": "uri", "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://", "maxLength": limits.url_bytes_max });
    say(schemas, "TargetRequestHttp", "url", url);
    say(schemas, "TargetRequestHttp", "headers", json!({ "maxProperties": limits.headers_max }));
    say(schemas, "TargetRequestHttp", "timeout", json!({ "minLength": 2, "maxLength": 64, "examples": ["10s"] }));
    say(schemas, "RetryRequest", "attempts_max", json!({ "minimum": 1, "maximum": limits.attempts_max }));
    say(schemas, "RetryRequest", "backoff", duration.clone());
    say(schemas, "RetryRequest", "backoff_max", duration);
    make_patch(schemas);
}

/// A merge patch names what it changes, and nothing else; `null` takes away, in objects of strings, too.
fn make_patch(schemas: &mut Map<String, Value>) {
    for (of, patch) in [
        ("ScheduleRequest", "SchedulePatch"),
        ("TargetRequest", "TargetPatch"),
        ("TargetRequestHttp", "TargetPatchHttp"),
    ] {
        let mut schema = schemas[of].clone();
        if let Some(schema) = schema.as_object_mut() {
            schema.remove("required");
            schema.remove("oneOf");
            schema.insert("description".to_owned(), json!(format!("As `{of}`, of which it has what is to change")));
        }
        for field in ["labels", "headers"] {
            if schema["properties"].get(field).is_some() {
                schema["properties"][field]["additionalProperties"]["type"] = json!(["string", "null"]);
            }
        }
        schemas.insert(patch.to_owned(), schema);
    }
    schemas["SchedulePatch"]["properties"]["target"] = reference("TargetPatch");
    schemas["TargetPatch"]["properties"]["http"] = reference("TargetPatchHttp");
}

fn limit_tenants(schemas: &mut Map<String, Value>) {
    let name = json!({ "pattern": ID, "minLength": 1, "maxLength": ScheduleId::LEN_MAX });
    say(schemas, "TenantRequest", "name", name);
    say(schemas, "KeyRequest", "name", json!({ "maxLength": 128 }));
    let allow = json!({ "items": { "enum": ["loopback", "private", "link_local", "shared"] } });
    say(schemas, "Egress", "allow", allow);
    let networks =
        json!({ "maxItems": domain::egress::NETWORKS_MAX, "items": { "type": "string", "examples": ["10.1.0.0/16"] } });
    say(schemas, "Egress", "allow_networks", networks);
    // In a patch, `null` is the default, of each and of all.
    let mut patch = schemas["Egress"].clone();
    if let Some(fields) = patch["properties"].as_object_mut() {
        for field in fields.values_mut() {
            let type_of = field["type"].take();
            field["type"] = json!([type_of, "null"]);
            field.as_object_mut().map(|field| field.remove("default"));
        }
    }
    patch["type"] = json!(["object", "null"]);
    schemas.insert("EgressPatch".to_owned(), patch);
    schemas["TenantPatch"]["properties"]["egress"] = reference("EgressPatch");
}
