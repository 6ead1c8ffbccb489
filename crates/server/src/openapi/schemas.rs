//! JSON Schemas of the wire types, with the limits and patterns of this server.

use domain::ScheduleId;
use domain::limits::Limits;
use domain::preview::COUNT_MAX;
use schemars::generate::{Contract, SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::Options;
use crate::condition;
use crate::idempotency;
use crate::preview::COUNT_DEFAULT;
use crate::query::PAGE_LIMIT_MAX;
use crate::route::{Parameter, reference, schema_of};

use super::simplify::simplify;

const ID: &str = "^[A-Za-z0-9_-]+$";
const TOPIC: &str = "^[A-Za-z0-9._-]+$";

pub(super) struct Schemas {
    /// Generator for the schemas of requests. Requests may lack fields that have a default, but responses always
    /// contain these fields.
    pub(super) requests: SchemaGenerator,
    pub(super) responses: SchemaGenerator,
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
            responses: generator(Contract::Serialize),
            limits: options.limits.clone(),
        }
    }

    pub(super) fn path_parameter(&self, name: &str) -> Value {
        let (description, example) = match name {
            "tenant" => ("Name of the tenant", "default"),
            _ => ("Id", "invoice-4711"),
        };
        let schema = json!({ "type": "string", "pattern": ID, "minLength": 1, "maxLength": ScheduleId::LEN_MAX });
        json!({
            "name": name,
            "in": "path",
            "required": true,
            "description": description,
            "schema": schema,
            "example": example,
        })
    }

    pub(super) fn parameter(&self, parameter: Parameter) -> Value {
        let instant = || json!({ "type": "string", "format": "date-time" });
        let (name, description, schema) = match parameter {
            Parameter::At => ("at", "Instant to explain", instant()),
            Parameter::Count => {
                let schema = json!({ "type": "integer", "minimum": 1, "maximum": COUNT_MAX, "default": COUNT_DEFAULT });
                ("count", "Maximum number of occurrences", schema)
            }
            Parameter::PreviewFrom => {
                let description = "Earliest instant, inclusive; by default the preview starts with the first occurrence \
                                   of a schedule that is created now";
                ("from", description, instant())
            }
            Parameter::DeadLetter => (
                "dead_letter",
                "If present, the route lists only the dead letters; other filters, ranges and orders are then not allowed",
                json!({ "type": "string", "enum": ["true"] }),
            ),
            Parameter::DryRun => {
                ("dry_run", "If true, the server returns the result but writes no data", json!({ "type": "boolean" }))
            }
            Parameter::IdempotencyKey => {
                let schema =
                    json!({ "type": "string", "pattern": idempotency::PATTERN, "minLength": 1, "maxLength": 512 });
                let description = "Every request with this key and this body gets the same response. In a batch, the key \
                                   applies to each line: a repeated line with the same number gets the same result";
                ("Idempotency-Key", description, schema)
            }
            Parameter::DueFrom => ("due_from", "Start of the due range, inclusive", instant()),
            Parameter::DueUntil => {
                ("due_until", "End of the due range, exclusive; at most 24 hours after the start", instant())
            }
            Parameter::From => {
                let description = "Earliest due instant, inclusive. The first page of a listing without `schedule` \
                                   requires this parameter";
                ("from", description, instant())
            }
            Parameter::Until => ("until", "End of the range of due instants, exclusive", instant()),
            Parameter::Host => {
                let schema = json!({ "type": "string", "minLength": 1, "maxLength": 253 });
                ("host", "Host of the present target of the run's schedule, without scheme and port", schema)
            }
            Parameter::LateBy => (
                "late_by",
                "Minimum duration from the due instant to the start of the first attempt, for example `5s`",
                json!({ "type": "string" }),
            ),
            Parameter::ReportBy => {
                let schema =
                    json!({ "type": "string", "enum": ["state", "hour", "host", "label"], "default": "state" });
                ("by", "Property by which the report has rows", schema)
            }
            Parameter::ReportFrom => {
                ("from", "Start of the range of due instants; the server rounds it down to a whole hour", instant())
            }
            Parameter::ReportTo => {
                let description = "End of the range of due instants, exclusive, at most 92 days after the start; the \
                                   server rounds it up to a whole hour. Default: now";
                ("to", description, instant())
            }
            Parameter::ReportState => {
                let states = ["succeeded", "failed", "missed", "cancelled"];
                ("state", "State of the runs to count", json!({ "type": "string", "enum": states }))
            }
            Parameter::RunOrder => {
                let schema = json!({ "type": "string", "enum": ["oldest", "newest"], "default": "newest" });
                ("order", "Order of the results by their due instants", schema)
            }
            Parameter::RunState => {
                let states = ["retrying", "succeeded", "failed", "missed", "cancelled"];
                ("state", "State of the runs to list", json!({ "type": "string", "enum": states }))
            }
            Parameter::Schedule => {
                let schema =
                    json!({ "type": "string", "pattern": ID, "minLength": 1, "maxLength": ScheduleId::LEN_MAX });
                ("schedule", "Id of the schedule whose runs to list", schema)
            }
            Parameter::Status => {
                let schema = json!({ "type": "integer", "minimum": 100, "maximum": 999 });
                ("status", "HTTP status of at least one attempt of the run", schema)
            }
            Parameter::IfMatch => (
                "If-Match",
                "Requires that the schedule's ETag is in this list; `*` requires that the schedule exists",
                tags(),
            ),
            Parameter::IfNoneMatch => (
                "If-None-Match",
                "Requires that the schedule's ETag is not in this list; `*` requires that the schedule does not exist",
                tags(),
            ),
            Parameter::Label => {
                let length_max = 2 * self.limits.label_bytes_max + 1;
                let schema = json!({ "type": "string", "pattern": "^[^=]+=", "maxLength": length_max });
                ("label", "Name of a label, `=` and its value", schema)
            }
            Parameter::Limit => {
                let schema = json!({ "type": "integer", "minimum": 1, "maximum": PAGE_LIMIT_MAX, "default": 100 });
                ("limit", "Maximum number of results", schema)
            }
            Parameter::Order => {
                let schema = json!({ "type": "string", "enum": ["oldest", "newest", "id"], "default": "oldest" });
                let description = "Order of the results: by creation time, or by the bytes of the ids. The value `id` is \
                                   not allowed with `label`, and no value is allowed with a due range";
                ("order", description, schema)
            }
            Parameter::PageToken => {
                ("page_token", "`next_page_token` of the previous page", json!({ "type": "string" }))
            }
            Parameter::State => {
                let schema = json!({ "type": "string", "enum": ["active", "ended", "cancelled"] });
                ("state", "State of the schedules to list", schema)
            }
        };
        let place = if parameter.is_header() { "header" } else { "query" };
        let is_required = matches!(parameter, Parameter::At | Parameter::ReportFrom);
        json!({ "name": name, "in": place, "required": is_required, "description": description, "schema": schema })
    }

    /// Returns all schemas by name. `codes` are the problem codes.
    pub(super) fn finish(mut self, codes: &[&str]) -> Map<String, Value> {
        // Other schemas mention `BatchLine` and `Egress` only in text, but clients need the definitions of these types.
        schema_of::<api::BatchLine<'_>>(&mut self.responses);
        schema_of::<api::Egress>(&mut self.requests);
        let mut schemas = self.responses.take_definitions(true);
        schemas.extend(self.requests.take_definitions(true));
        let mut schemas: Map<String, Value> = schemas.into_iter().collect();
        let numbers = json!({ "type": ["integer", "null"], "minimum": 0, "maximum": u32::MAX });
        let mut quotas: Map<String, Value> =
            domain::Quota::ALL.into_iter().map(|quota| (quota.name().to_owned(), numbers.clone())).collect();
        // Generators for Go reject an `enum` that contains `null`.
        let [shortest, .., longest] = domain::Retention::ALL.map(domain::Retention::days);
        let classes = domain::Retention::ALL.map(|class| class.days().to_string()).join(", ");
        let days = json!({
            "type": ["integer", "null"],
            "minimum": shortest,
            "maximum": longest,
            "description": format!("One of the numbers {classes}, in days"),
        });
        quotas.insert(domain::Quota::RetentionDays.name().to_owned(), days);
        schemas.insert(
            "Quotas".to_owned(),
            json!({
                "type": "object",
                "description": "Inclusive maximum for each quota. `null` means that only the limits of the whole \
                    service apply. A quota that is missing from a request keeps its value.",
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
        schemas.values_mut().for_each(simplify);
        schemas
    }
}

/// Schema of a list of entity tags (RFC 9110).
fn tags() -> Value {
    json!({ "type": "string", "pattern": condition::PATTERN })
}

/// Adds the keywords in `more` to the schema of the field `field` of the type `name`.
fn extend_field(schemas: &mut Map<String, Value>, name: &str, field: &str, more: Value) {
    let known = &mut schemas[name]["properties"][field];
    assert!(known.is_object(), "{name} has the field {field}");
    let (Some(known), Value::Object(more)) = (known.as_object_mut(), more) else { return };
    known.extend(more);
}

fn limit_schedules(schemas: &mut Map<String, Value>, limits: &Limits) {
    let id = json!({ "pattern": ID, "minLength": 1, "maxLength": ScheduleId::LEN_MAX });
    let duration = json!({ "minLength": 2, "maxLength": 64, "examples": ["30s", "1h30m", "PT30S"] });
    extend_field(schemas, "ScheduleRequest", "id", id);
    extend_field(
        schemas,
        "ScheduleRequest",
        "at",
        json!({ "format": "date-time", "examples": ["2035-01-02T03:04:05Z"] }),
    );
    extend_field(schemas, "ScheduleRequest", "cron", json!({ "maxLength": 256, "examples": ["0 9 * * MON-FRI"] }));
    extend_field(schemas, "ScheduleRequest", "every", duration.clone());
    let labels = json!({
        "maxProperties": limits.labels_max,
        "propertyNames": { "minLength": 1, "maxLength": limits.label_bytes_max },
        "additionalProperties": { "type": "string", "maxLength": limits.label_bytes_max },
    });
    extend_field(schemas, "ScheduleRequest", "labels", labels);
    // A request must contain exactly one of `at`, `cron` and `every`. Client generators misread the standard form of
    // this rule, which is `oneOf` beside `properties`.
    schemas["ScheduleRequest"]["x-exactly-one-of"] = json!(["at", "cron", "every"]);
    let url = json!({ "format": "uri", "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://", "maxLength": limits.url_bytes_max });
    extend_field(schemas, "TargetRequestHttp", "url", url);
    extend_field(schemas, "TargetRequestHttp", "headers", json!({ "maxProperties": limits.headers_max }));
    extend_field(
        schemas,
        "TargetRequestHttp",
        "timeout",
        json!({ "minLength": 2, "maxLength": 64, "examples": ["10s"] }),
    );
    // Like the timing, a target must have exactly one of its fields.
    schemas["TargetRequest"]["x-exactly-one-of"] = json!(["http", "bus"]);
    schemas["Target"] = json!({
        "type": "object",
        "description": "Destination of a schedule's callbacks. It has exactly one of the fields.",
        "properties": { "http": reference("HttpTarget"), "bus": reference("BusTarget") },
        "x-exactly-one-of": ["http", "bus"],
    });
    let topic = json!({ "pattern": TOPIC, "minLength": 1, "maxLength": domain::topic::NAME_BYTES_MAX });
    extend_field(schemas, "TargetRequestBus", "topic", topic);
    extend_field(schemas, "TargetRequestBus", "key", json!({ "maxLength": domain::validate::BUS_KEY_BYTES_MAX }));
    extend_field(schemas, "TargetRequestBus", "headers", json!({ "maxProperties": limits.headers_max }));
    extend_field(
        schemas,
        "TargetRequestBus",
        "timeout",
        json!({ "minLength": 2, "maxLength": 64, "examples": ["10s"] }),
    );
    extend_field(schemas, "RetryRequest", "attempts_max", json!({ "minimum": 1, "maximum": limits.attempts_max }));
    extend_field(schemas, "RetryRequest", "backoff", duration.clone());
    extend_field(schemas, "RetryRequest", "backoff_max", duration);
    make_patch(schemas);
}

/// Adds the schemas of merge patches. All fields of a patch are optional, and `null` removes a field, label or header.
fn make_patch(schemas: &mut Map<String, Value>) {
    for (of, patch) in [
        ("ScheduleRequest", "SchedulePatch"),
        ("TargetRequest", "TargetPatch"),
        ("TargetRequestHttp", "TargetPatchHttp"),
        ("TargetRequestBus", "TargetPatchBus"),
        ("CloudEvent", "CloudEventPatch"),
    ] {
        let mut schema = schemas[of].clone();
        if let Some(schema) = schema.as_object_mut() {
            schema.remove("required");
            schema.remove("x-exactly-one-of");
            schema.insert("description".to_owned(), json!(format!("Changes to a `{of}`")));
        }
        for field in ["labels", "headers"] {
            if schema["properties"].get(field).is_some() {
                schema["properties"][field]["additionalProperties"]["type"] = json!(["string", "null"]);
            }
        }
        schemas.insert(patch.to_owned(), schema);
    }
    for (of, moved) in [("TargetPatchHttp", "scheme, host or port"), ("TargetPatchBus", "topic")] {
        schemas[of]["properties"]["headers"]["description"] = json!(format!(
            "Headers to set or, with `null`, to remove. The schedule keeps the other stored headers. If the change moves the \
             target to another {moved}, it must name each stored header."
        ));
    }
    schemas["SchedulePatch"]["properties"]["target"] = reference("TargetPatch");
    schemas["TargetPatch"]["properties"]["http"] = reference("TargetPatchHttp");
    schemas["TargetPatch"]["properties"]["bus"] = reference("TargetPatchBus");
    schemas["TargetPatchBus"]["properties"]["cloud_event"] = reference("CloudEventPatch");
}

fn limit_tenants(schemas: &mut Map<String, Value>) {
    let name = json!({ "pattern": ID, "minLength": 1, "maxLength": ScheduleId::LEN_MAX });
    extend_field(schemas, "TenantRequest", "name", name);
    extend_field(schemas, "KeyRequest", "name", json!({ "maxLength": 128 }));
    let allow = json!({ "items": { "type": "string", "enum": ["loopback", "private", "link_local", "shared"] } });
    extend_field(schemas, "Egress", "allow", allow);
    let networks =
        json!({ "maxItems": domain::egress::NETWORKS_MAX, "items": { "type": "string", "examples": ["10.1.0.0/16"] } });
    extend_field(schemas, "Egress", "allow_networks", networks);
    let topics =
        json!({ "maxItems": domain::egress::TOPICS_MAX, "items": { "type": "string", "examples": ["orders-*"] } });
    extend_field(schemas, "Egress", "allow_topics", topics);
    // In a patch, a field of `Egress` may be `null`, which restores the field's default. The whole object may also be
    // `null`, which restores the defaults of all its fields.
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
