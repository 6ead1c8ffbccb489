//! Description of a route: its parameters, body, responses and problem codes. The router registers each handler with
//! its description. The description determines the API keys that the route accepts, the label in metrics and spans, and
//! the route's part of the OpenAPI document.

use schemars::JsonSchema;
use schemars::generate::SchemaGenerator;
use serde_json::{Value, json};

use crate::rejection::Code;
use crate::unread::{BATCH_BYTES, PAGE_BYTES, SCHEDULE_BYTES};

/// Media type of NDJSON lines for client generators that do not know the NDJSON media type.
pub(crate) const BYTES: &str = "application/octet-stream";

/// Role that a request needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Needs {
    Nothing,
    Reader,
    Writer,
    /// Admin of the key's own tenant.
    Admin,
    /// Admin of the tenant in the path, or an operator.
    AdminOf,
    /// Admin of any tenant, or an operator.
    AdminOrOperator,
    Operator,
}

/// Function that generates the schema of a body, and registers the definitions that the schema uses.
pub(crate) type Schema = fn(&mut SchemaGenerator) -> Value;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parameter {
    At,
    Count,
    DeadLetter,
    DryRun,
    DueFrom,
    DueUntil,
    From,
    Host,
    IdempotencyKey,
    IfMatch,
    IfNoneMatch,
    Label,
    LateBy,
    Limit,
    Order,
    PageToken,
    /// Parameter `from` of a preview.
    PreviewFrom,
    ReportBy,
    ReportFrom,
    ReportState,
    ReportTo,
    RunOrder,
    RunState,
    Schedule,
    State,
    Status,
    Until,
}

impl Parameter {
    pub(crate) fn is_header(self) -> bool {
        matches!(self, Parameter::IdempotencyKey | Parameter::IfMatch | Parameter::IfNoneMatch)
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Content {
    Json(Schema),
    /// JSON, or text with this media type if the client accepts it.
    JsonOrText(Schema, &'static str),
    Lines,
    Nothing,
    /// Text body with one of these media types.
    Text(&'static [&'static str]),
}

#[derive(Clone, Copy)]
pub(crate) struct ResponseSpec {
    pub(crate) status: u16,
    pub(crate) description: &'static str,
    pub(crate) content: Content,
    pub(crate) headers: &'static [&'static str],
}

#[derive(Clone, Copy)]
pub(crate) struct Body {
    pub(crate) media: &'static [&'static str],
    pub(crate) schema: Schema,
    pub(crate) is_required: bool,
}

/// Entry of the routing table.
pub(crate) struct Route {
    /// Method and path, which are the label in metrics and spans.
    pub(crate) name: &'static str,
    /// `operationId` in the OpenAPI document.
    pub(crate) id: &'static str,
    pub(crate) tag: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) needs: Needs,
    pub(crate) parameters: &'static [Parameter],
    pub(crate) body: Option<Body>,
    /// Successful responses. The OpenAPI document does not contain a route without successful responses.
    pub(crate) responses: Vec<ResponseSpec>,
    /// Problem codes of the route, except the codes that [`Route::rejections`] derives from the other fields.
    rejects: &'static [Code],
}

const SCHEDULES: &str = "schedules";
const JSON: &[&str] = &["application/json"];
const MERGE_PATCH: &[&str] = &["application/merge-patch+json", "application/json"];

pub(crate) fn ok(description: &'static str, schema: Schema) -> ResponseSpec {
    ResponseSpec { status: 200, description, content: Content::Json(schema), headers: &[] }
}

pub(crate) fn created_response(description: &'static str, schema: Schema) -> ResponseSpec {
    ResponseSpec { status: 201, ..ok(description, schema) }
}

/// Creates a route about schedules.
pub(crate) fn schedules(
    name: &'static str,
    id: &'static str,
    needs: Needs,
    summary: &'static str,
    response: ResponseSpec,
) -> Route {
    Route { tag: SCHEDULES, summary, needs, responses: vec![response], ..Route::undocumented(name, id) }
}

/// Creates a route about tenants.
pub(crate) fn tenants(
    name: &'static str,
    id: &'static str,
    needs: Needs,
    summary: &'static str,
    response: ResponseSpec,
) -> Route {
    Route { tag: "tenants", ..schedules(name, id, needs, summary, response) }
}

/// Creates a route for operators of the service. Requests to this route need no key.
pub(crate) fn operation(name: &'static str, id: &'static str, summary: &'static str, response: ResponseSpec) -> Route {
    Route { tag: "operation", ..schedules(name, id, Needs::Nothing, summary, response) }
}

impl Route {
    /// Label for requests that match no entry of the routing table.
    pub(crate) const UNKNOWN: Route = Route::undocumented("unknown", "unknown");

    pub(crate) const fn undocumented(name: &'static str, id: &'static str) -> Self {
        Route {
            name,
            id,
            tag: "",
            summary: "",
            needs: Needs::Nothing,
            parameters: &[],
            body: None,
            responses: Vec::new(),
            rejects: &[],
        }
    }

    pub(crate) fn method_and_path(&self) -> (&'static str, &'static str) {
        self.name.split_once(' ').expect("a route's name consists of a method and a path")
    }

    pub(crate) fn with_body(self, schema: Schema) -> Self {
        Route { body: Some(Body { media: JSON, schema, is_required: true }), ..self }
    }

    /// Declares that the body consists of lines. An empty body is also valid.
    pub(crate) fn with_lines(self) -> Self {
        let media = &[api::NDJSON_CONTENT_TYPE, BYTES];
        Route { body: Some(Body { media, schema: batch_lines, is_required: false }), ..self }
    }

    pub(crate) fn with_patch(self, schema: Schema) -> Self {
        Route { body: Some(Body { media: MERGE_PATCH, schema, is_required: true }), ..self }
    }

    pub(crate) fn with(self, parameters: &'static [Parameter]) -> Self {
        Route { parameters, ..self }
    }

    pub(crate) fn or(mut self, response: ResponseSpec) -> Self {
        self.responses.push(response);
        self
    }

    pub(crate) fn rejecting(self, rejects: &'static [Code]) -> Self {
        Route { rejects, ..self }
    }

    /// Returns true if the route has query parameters.
    pub(crate) fn has_query(&self) -> bool {
        self.parameters.iter().any(|parameter| !parameter.is_header())
    }

    /// Returns true if the body is one schedule or a change of one schedule.
    pub(crate) fn changes_schedule(&self) -> bool {
        self.tag == SCHEDULES && self.body.is_some_and(|body| body.is_required)
    }

    /// Returns the number of bytes that the server reserves for a response before the handler runs, or `None` if every
    /// response of the route is small.
    pub(crate) fn reserved_bytes(&self) -> Option<usize> {
        let first = self.responses.first()?;
        let is_key_needed = self.needs != Needs::Nothing;
        match first.content {
            Content::Lines => Some(BATCH_BYTES),
            Content::Json(_) if self.parameters.contains(&Parameter::Limit) => Some(PAGE_BYTES),
            Content::Json(_) if self.parameters.contains(&Parameter::Count) => Some(SCHEDULE_BYTES),
            Content::JsonOrText(..) => Some(PAGE_BYTES),
            // The list of differences is as long as a page.
            Content::Json(_) if self.needs == Needs::AdminOrOperator => Some(PAGE_BYTES),
            Content::Json(_) if self.name.starts_with("GET ") && is_key_needed => Some(SCHEDULE_BYTES),
            Content::Json(_) | Content::Nothing | Content::Text(_) => None,
        }
    }

    /// Returns all problem codes of the route.
    pub(crate) fn rejections(&self) -> Vec<Code> {
        let mut rejections = self.rejects.to_vec();
        if self.needs != Needs::Nothing {
            rejections.extend([Code::MissingCredentials, Code::InvalidCredentials]);
            rejections.extend([Code::StoreDamaged, Code::StoreUnavailable, Code::Internal]);
        }
        if self.tag == SCHEDULES && self.body.is_some() {
            rejections.push(Code::CoordinationUnavailable);
        }
        if self.reserved_bytes().is_some() {
            rejections.push(Code::Overloaded);
        }
        match self.needs {
            Needs::Nothing => {}
            // An operator's key also causes `RoleForbidden` on a route for readers, writers or admins, because the
            // tenant of an operator's key has no schedules.
            Needs::Reader | Needs::Writer | Needs::Admin | Needs::AdminOrOperator | Needs::Operator => {
                rejections.push(Code::RoleForbidden);
            }
            Needs::AdminOf => rejections.extend([Code::RoleForbidden, Code::TenantNotFound]),
        }
        // A route without query parameters also rejects a request that contains query parameters.
        if self.needs != Needs::Nothing {
            rejections.push(Code::InvalidParameter);
        }
        if self.parameters.contains(&Parameter::IfMatch) {
            rejections.push(Code::PreconditionFailed);
        }
        if self.body.is_some() {
            rejections.extend([Code::BodyBroken, Code::BodyTimeout, Code::BodyTooLarge, Code::UnsupportedMediaType]);
            rejections.push(Code::MalformedJson);
        }
        rejections
    }
}

pub(crate) fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

pub(crate) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

pub(crate) fn quota_numbers(_: &mut SchemaGenerator) -> Value {
    reference("Quotas")
}

pub(crate) fn schedule_patch(_: &mut SchemaGenerator) -> Value {
    reference("SchedulePatch")
}

/// Generates the schema of a batch. OpenAPI 3.1 cannot describe single lines, so the schema describes the body as text.
pub(crate) fn batch_lines(generator: &mut SchemaGenerator) -> Value {
    schema_of::<api::ScheduleRequest>(generator);
    json!({ "type": "string", "description": "Lines that each contain one `ScheduleRequest` as JSON" })
}

pub(crate) fn summary(generator: &mut SchemaGenerator) -> Value {
    schema_of::<api::ScheduleSummary<'_>>(generator)
}

pub(crate) fn summary_or_dry_run(generator: &mut SchemaGenerator) -> Value {
    json!({ "anyOf": [summary(generator), schema_of::<api::DryRun>(generator)] })
}

pub(crate) fn status(_: &mut SchemaGenerator) -> Value {
    let status = json!({ "type": "string", "enum": ["ok", "ready", "storage_full", "coordination_unavailable"] });
    json!({ "type": "object", "properties": { "status": status }, "required": ["status"] })
}
