//! OpenAPI document of the API, generated from the routes, the wire types and the limits of this server.
//!
//! The module contains no list of routes. Each [`Route`] of the routing table describes itself, the schemas come from
//! the types of `api`, and the limits come from [`Options`]. Later builds may add fields to responses, so the
//! schemas of responses allow unknown fields. The schemas of requests forbid unknown fields, because the server rejects
//! them.
//!
//! docs/decisions/0068-generate-the-openapi-document.md gives the reasons for the design.

mod examples;
mod schemas;
mod simplify;
mod v3_0;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use self::schemas::Schemas;
use crate::Options;
use crate::rejection::Code;
use crate::route::{BYTES, Content, Needs, ResponseSpec, Route, schema_of};

/// Version of OpenAPI in which a document is written.
#[derive(Clone, Copy)]
pub(crate) enum Version {
    V3_0,
    V3_1,
}

/// Generates the whole document as JSON.
pub(crate) fn document(routes: &[Arc<Route>], options: &Options, version: Version) -> Vec<u8> {
    let mut schemas = Schemas::new(options);
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let mut codes: Vec<&'static str> = Vec::new();
    for route in routes {
        let (method, path) = route.method_and_path();
        codes.extend(route.rejections().iter().map(|code| code.code()));
        let described = describe(route, path, &mut schemas);
        paths.entry(path).or_default().insert(method.to_ascii_lowercase(), described);
    }
    codes.sort_unstable();
    codes.dedup();
    let webhooks = json!({ "callback": { "post": callback() } });
    let document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Reveille",
            "version": "1",
            "summary": "A scheduler that sends callbacks to services and topics on time",
            "description": "Every route under /v1 requires a key, and works only on the data of the key's tenant. \
                The server confirms a change only after it is durable.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        // The URL of the API is relative to the URL of this document, because a proxy may add a prefix to both.
        "servers": [{ "url": "." }],
        "tags": [
            { "name": "schedules", "description": "Schedules and their runs" },
            { "name": "tenants", "description": "Tenants, keys, signing secrets and quotas" },
            { "name": "operation", "description": "Health and metrics; no key is required" },
        ],
        "security": [{ "key": [] }],
        "paths": paths,
        "webhooks": webhooks,
        "components": {
            "schemas": schemas.finish(&codes),
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "KEY_ID.SECRET",
                    "description": "Key of a tenant or of an operator. Each role includes the permissions of the roles \
                        before it: reader, writer, admin, operator.",
                },
            },
        },
    });
    let document = match version {
        Version::V3_0 => v3_0::render(document),
        Version::V3_1 => document,
    };
    serde_json::to_vec(&document).expect("all object keys of the document are strings")
}

fn describe(route: &Route, path: &str, schemas: &mut Schemas) -> Value {
    let mut described = json!({
        "operationId": route.id,
        "summary": route.summary,
        "tags": [route.tag],
    });
    let whole = described.as_object_mut().expect("the description of a route is a JSON object");
    if let Some(role) = route.needs.role() {
        whole
            .insert("description".to_owned(), json!(format!("Requires a key with the role `{role}` or a higher one.")));
    } else {
        whole.insert("security".to_owned(), json!([]));
    }
    let in_path = path.split('{').skip(1).filter_map(|part| Some(part.split_once('}')?.0));
    let mut parameters: Vec<Value> = in_path.map(|name| schemas.path_parameter(name)).collect();
    parameters.extend(route.parameters.iter().map(|parameter| schemas.parameter(*parameter)));
    if !parameters.is_empty() {
        whole.insert("parameters".to_owned(), json!(parameters));
    }
    if let Some(body) = route.body {
        let content: Map<String, Value> = body
            .media
            .iter()
            .map(|media| {
                let schema = match *media {
                    BYTES => bytes(),
                    _ => (body.schema)(&mut schemas.requests),
                };
                let mut content = json!({ "schema": schema });
                if let Some(example) = examples::request(route.id) {
                    content["example"] = example;
                }
                ((*media).to_owned(), content)
            })
            .collect();
        whole.insert("requestBody".to_owned(), json!({ "required": body.is_required, "content": content }));
    }
    let mut responses = Map::new();
    for response in &route.responses {
        responses.insert(response.status.to_string(), describe_response(response, schemas));
    }
    for (status, kinds) in by_status(route.rejections()) {
        responses.insert(status.to_string(), describe_rejections(&kinds, schemas));
    }
    whole.insert("responses".to_owned(), Value::Object(responses));
    described
}

fn describe_response(response: &ResponseSpec, schemas: &mut Schemas) -> Value {
    let mut described = json!({ "description": response.description });
    let content = match response.content {
        Content::Json(schema) => json!({ "application/json": { "schema": schema(&mut schemas.responses) } }),
        Content::JsonOrText(schema, media) => json!({
            "application/json": { "schema": schema(&mut schemas.responses) },
            media: { "schema": { "type": "string" } },
        }),
        // The document describes a body of NDJSON lines as bytes. A generated client returns the bytes unparsed, so
        // the caller of the client can read the lines.
        Content::Lines => json!({ api::NDJSON_CONTENT_TYPE: { "schema": bytes() } }),
        Content::Text(media) => {
            let texts = media.iter().map(|media| ((*media).to_owned(), json!({ "schema": { "type": "string" } })));
            Value::Object(texts.collect())
        }
        Content::Nothing => Value::Null,
    };
    if !content.is_null() {
        described["content"] = content;
    }
    for header in response.headers {
        described["headers"][header] = json!({ "required": true, "schema": { "type": "string" } });
    }
    described
}

/// Schema of a body that clients send and receive as bytes.
fn bytes() -> Value {
    json!({ "type": "string", "format": "binary" })
}

fn by_status(kinds: Vec<Code>) -> BTreeMap<u16, Vec<Code>> {
    let mut by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for kind in kinds {
        by_status.entry(kind.status().as_u16()).or_default().push(kind);
    }
    by_status
}

fn describe_rejections(kinds: &[Code], schemas: &mut Schemas) -> Value {
    let texts: Vec<String> = kinds.iter().map(|kind| format!("`{}`: {}", kind.code(), kind.title())).collect();
    let mut described = json!({
        "description": texts.join("; "),
        "content": {
            api::PROBLEM_CONTENT_TYPE: {
                "schema": schema_of::<api::Problem>(&mut schemas.responses),
                "examples": kinds.iter().map(|kind| examples::problem(*kind)).collect::<Map<_, _>>(),
            },
        },
    });
    let text = || json!({ "required": true, "schema": { "type": "string" } });
    if kinds.iter().all(|kind| kind.retry_after_secs().is_some()) {
        described["headers"]["Retry-After"] = text();
    }
    if kinds.iter().all(|kind| kind.challenge().is_some()) {
        described["headers"]["WWW-Authenticate"] = text();
    }
    described
}

/// Describes the requests that this service sends to the targets of schedules.
fn callback() -> Value {
    let header = |name: &str, description: &str| {
        json!({
            "name": name,
            "in": "header",
            "required": true,
            "description": description,
            "schema": { "type": "string" },
        })
    };
    json!({
        "operationId": "callback",
        "summary": "Callback for one attempt of a run",
        "description": "The service sends this request to the schedule's target with its method and headers, at least \
            once for each occurrence. Receivers drop duplicates by `webhook-id`, and verify one of the signatures. For a \
            target with a topic, the service sends a record with the same headers to the topic instead.",
        "security": [],
        "parameters": [
            header("webhook-id", "Id of the run, the same on every attempt of an occurrence"),
            header("webhook-timestamp", "Start of the attempt, in seconds since 1970"),
            header("webhook-signature", "`v1,` and the base64 of the HMAC-SHA256 of id, timestamp and body, as in \
                Standard Webhooks. There is one signature for each live signing secret, separated by spaces"),
            header("reveille-schedule-id", "Id of the schedule"),
            header("reveille-run-id", "The same as `webhook-id`"),
            header("reveille-attempt", "Number of the attempt, from 1"),
            header("reveille-scheduled-at", "Nominal instant of the occurrence"),
            header("reveille-lateness-ms", "Time from the nominal instant to the start of the attempt"),
            header("reveille-term", "Fencing number, which rises with each new owner of the schedule. Receivers only \
                compare it"),
            header("traceparent", "W3C Trace Context; the trace id belongs to the run"),
        ],
        "requestBody": {
            "description": "The schedule's `payload`, byte for byte; empty if the schedule has no payload",
            "content": { "application/json": { "schema": {} } },
        },
        "responses": {
            "2XX": { "description": "The run has succeeded." },
            "default": {
                "description": "The attempt has failed. The service retries it after a wait while attempts are left. \
                    A response that takes longer than the target's `timeout` counts as a failure too.",
            },
        },
    })
}

impl Needs {
    /// Returns the lowest role that the route accepts.
    fn role(self) -> Option<&'static str> {
        match self {
            Needs::Nothing => None,
            Needs::Reader => Some("reader"),
            Needs::Writer => Some("writer"),
            Needs::Admin | Needs::AdminOf | Needs::AdminOrOperator => Some("admin"),
            Needs::Operator => Some("operator"),
        }
    }
}
