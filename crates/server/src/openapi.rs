//! What the API is, as an OpenAPI document: made from the routes, the wire types and the limits of this very server.
//!
//! It holds no list of its own of what there is: each [`Route`] of the table says what it is, schemas come from the types of
//! `api`, and the numbers in them from [`Options`].
//! Answers may get more fields within `/v1`, so their schemas are open; those of requests are closed, as the server is.

mod schemas;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use self::schemas::Schemas;
use crate::Options;
use crate::refusal::Code;
use crate::route::{Answer, Content, Needs, Route, of};

/// The whole document, as JSON text.
pub(crate) fn document(routes: &[Arc<Route>], options: &Options) -> Vec<u8> {
    let mut schemas = Schemas::new(options);
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let mut codes: Vec<&'static str> = Vec::new();
    for route in routes {
        let (method, path) = route.method_and_path();
        codes.extend(route.refusals().iter().map(|code| code.code()));
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
            "summary": "A scheduler that calls services back on time",
            "description": "Every route under /v1 takes a key, and works on what is that key's tenant's only. \
                An answer that says that something was done comes after it is on disk.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
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
                    "description": "A key of a tenant, or of an operator. Each role may do what those before it may: \
                        reader, writer, admin, operator.",
                },
            },
        },
    });
    serde_json::to_vec(&document).expect("the document has text keys")
}

fn describe(route: &Route, path: &str, schemas: &mut Schemas) -> Value {
    let mut described = json!({
        "operationId": route.id,
        "summary": route.summary,
        "tags": [route.tag],
    });
    let whole = described.as_object_mut().expect("it is written as one above");
    if let Some(role) = route.needs.role() {
        whole.insert("description".to_owned(), json!(format!("For keys of the role `{role}`, and those above it.")));
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
            .map(|media| ((*media).to_owned(), json!({ "schema": (body.schema)(&mut schemas.requests) })))
            .collect();
        whole.insert("requestBody".to_owned(), json!({ "required": body.is_required, "content": content }));
    }
    let mut responses = Map::new();
    for answer in &route.answers {
        responses.insert(answer.status.to_string(), describe_answer(answer, schemas));
    }
    for (status, kinds) in by_status(route.refusals()) {
        responses.insert(status.to_string(), describe_refusals(&kinds, schemas));
    }
    whole.insert("responses".to_owned(), Value::Object(responses));
    described
}

fn describe_answer(answer: &Answer, schemas: &mut Schemas) -> Value {
    let mut described = json!({ "description": answer.what });
    let content = match answer.content {
        Content::Json(schema) => json!({ "application/json": { "schema": schema(&mut schemas.answers) } }),
        Content::Lines => json!({ api::NDJSON_CONTENT_TYPE: { "schema": { "type": "string" } } }),
        Content::Text(media) => json!({ media: { "schema": { "type": "string" } } }),
        Content::Nothing => Value::Null,
    };
    if !content.is_null() {
        described["content"] = content;
    }
    for header in answer.headers {
        described["headers"][header] = json!({ "required": true, "schema": { "type": "string" } });
    }
    described
}

fn by_status(kinds: Vec<Code>) -> BTreeMap<u16, Vec<Code>> {
    let mut by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for kind in kinds {
        by_status.entry(kind.status().as_u16()).or_default().push(kind);
    }
    by_status
}

fn describe_refusals(kinds: &[Code], schemas: &mut Schemas) -> Value {
    let told: Vec<String> = kinds.iter().map(|kind| format!("`{}`: {}", kind.code(), kind.title())).collect();
    let mut described = json!({
        "description": told.join("; "),
        "content": { api::PROBLEM_CONTENT_TYPE: { "schema": of::<api::Problem>(&mut schemas.answers) } },
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

/// What this service sends: not to the API's users' clients, but to their targets.
fn callback() -> Value {
    let header = |name: &str, what: &str| json!({ "name": name, "in": "header", "required": true, "description": what, "schema": { "type": "string" } });
    json!({
        "operationId": "callback",
        "summary": "An attempt of a run",
        "description": "Sent to the schedule's target by its method, with its headers, at least once for each occurrence. \
            Receivers drop doubles by `webhook-id`, and check one of the signatures.",
        "security": [],
        "parameters": [
            header("webhook-id", "The run's id: the same on every attempt of an occurrence"),
            header("webhook-timestamp", "When the attempt began, in seconds since 1970"),
            header("webhook-signature", "`v1,` and the base64 of the HMAC-SHA256 of id, timestamp and body, as Standard \
                Webhooks has it; one for each signing secret that is live, with spaces between them"),
            header("reveille-schedule-id", "The schedule's id"),
            header("reveille-run-id", "As `webhook-id`"),
            header("reveille-attempt", "1 for the first"),
            header("reveille-scheduled-at", "The instant that the schedule named"),
            header("reveille-lateness-ms", "How long after that the attempt began"),
            header("reveille-term", "Rises with each owner of the schedule; only ever compared"),
            header("traceparent", "W3C Trace Context; the trace is the run's"),
        ],
        "requestBody": {
            "description": "The schedule's `payload`, byte for byte; none if it has none",
            "content": { "application/json": { "schema": {} } },
        },
        "responses": {
            "2XX": { "description": "The run has succeeded" },
            "default": {
                "description": "The attempt has failed, and is made again after a wait while there are attempts left; \
                    so it is if the answer takes longer than the target's `timeout`",
            },
        },
    })
}

impl Needs {
    /// The least that a key has to be allowed.
    fn role(self) -> Option<&'static str> {
        match self {
            Needs::Nothing => None,
            Needs::Reader => Some("reader"),
            Needs::Writer => Some("writer"),
            Needs::Admin | Needs::AdminOf => Some("admin"),
            Needs::Operator => Some("operator"),
        }
    }
}
