//! Description of a route: what it takes, answers and rejects. The router registers each handler with its description, so that one
//! entry decides which keys may send the request, what it is called in metrics and spans, and what the OpenAPI document says.

use schemars::JsonSchema;
use schemars::generate::SchemaGenerator;
use serde_json::{Value, json};

use crate::refusal::Code;

/// Who may send it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Needs {
    Nothing,
    Reader,
    Writer,
    /// Of the key's own tenant.
    Admin,
    /// Of the tenant in the path, or an operator.
    AdminOf,
    Operator,
}

/// Makes the schema of a body, and leaves the definitions that it refers to with the generator.
pub(crate) type Schema = fn(&mut SchemaGenerator) -> Value;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parameter {
    DeadLetter,
    DryRun,
    DueFrom,
    DueUntil,
    IdempotencyKey,
    IfMatch,
    IfNoneMatch,
    Label,
    Limit,
    PageToken,
    State,
}

impl Parameter {
    pub(crate) fn is_header(self) -> bool {
        matches!(self, Parameter::IdempotencyKey | Parameter::IfMatch | Parameter::IfNoneMatch)
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Content {
    Json(Schema),
    Lines,
    Nothing,
    /// With its media type.
    Text(&'static str),
}

#[derive(Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) what: &'static str,
    pub(crate) content: Content,
    pub(crate) headers: &'static [&'static str],
}

#[derive(Clone, Copy)]
pub(crate) struct Body {
    pub(crate) media: &'static [&'static str],
    pub(crate) schema: Schema,
    pub(crate) is_required: bool,
}

/// One entry of the table of routes.
pub(crate) struct Route {
    /// Method and path: the label in metrics and spans.
    pub(crate) name: &'static str,
    /// The `operationId` in the document.
    pub(crate) id: &'static str,
    pub(crate) tag: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) needs: Needs,
    pub(crate) parameters: &'static [Parameter],
    pub(crate) body: Option<Body>,
    /// Empty: the route is not in the document.
    pub(crate) answers: Vec<Answer>,
    /// Beside what follows from the rest.
    refuses: &'static [Code],
}

const SCHEDULES: &str = "schedules";
const JSON: &[&str] = &["application/json"];
const MERGE_PATCH: &[&str] = &["application/merge-patch+json", "application/json"];

pub(crate) fn ok(what: &'static str, schema: Schema) -> Answer {
    Answer { status: 200, what, content: Content::Json(schema), headers: &[] }
}

pub(crate) fn made(what: &'static str, schema: Schema) -> Answer {
    Answer { status: 201, ..ok(what, schema) }
}

/// A route about schedules.
pub(crate) fn schedules(
    name: &'static str,
    id: &'static str,
    needs: Needs,
    summary: &'static str,
    answer: Answer,
) -> Route {
    Route { tag: SCHEDULES, summary, needs, answers: vec![answer], ..Route::undocumented(name, id) }
}

/// A route about tenants.
pub(crate) fn tenants(
    name: &'static str,
    id: &'static str,
    needs: Needs,
    summary: &'static str,
    answer: Answer,
) -> Route {
    Route { tag: "tenants", ..schedules(name, id, needs, summary, answer) }
}

/// A route for those that operate the service. It needs no key.
pub(crate) fn operation(name: &'static str, id: &'static str, summary: &'static str, answer: Answer) -> Route {
    Route { tag: "operation", ..schedules(name, id, Needs::Nothing, summary, answer) }
}

impl Route {
    /// Requests that no entry of the table matches.
    pub(crate) const UNKNOWN: Route = Route::undocumented("unknown", "Unknown");

    pub(crate) const fn undocumented(name: &'static str, id: &'static str) -> Self {
        Route {
            name,
            id,
            tag: "",
            summary: "",
            needs: Needs::Nothing,
            parameters: &[],
            body: None,
            answers: Vec::new(),
            refuses: &[],
        }
    }

    pub(crate) fn method_and_path(&self) -> (&'static str, &'static str) {
        self.name.split_once(' ').expect("a route is a method and a path")
    }

    pub(crate) fn taking(self, schema: Schema) -> Self {
        Route { body: Some(Body { media: JSON, schema, is_required: true }), ..self }
    }

    /// A batch without a line is one, too.
    pub(crate) fn taking_lines(self) -> Self {
        let media = &[api::NDJSON_CONTENT_TYPE];
        Route { body: Some(Body { media, schema: batch_lines, is_required: false }), ..self }
    }

    pub(crate) fn merging(self, schema: Schema) -> Self {
        Route { body: Some(Body { media: MERGE_PATCH, schema, is_required: true }), ..self }
    }

    pub(crate) fn with(self, parameters: &'static [Parameter]) -> Self {
        Route { parameters, ..self }
    }

    pub(crate) fn or(mut self, answer: Answer) -> Self {
        self.answers.push(answer);
        self
    }

    pub(crate) fn refusing(self, refuses: &'static [Code]) -> Self {
        Route { refuses, ..self }
    }

    /// Whether a query can have parameters.
    pub(crate) fn takes_query(&self) -> bool {
        self.parameters.iter().any(|parameter| !parameter.is_header())
    }

    /// Whether the body is one schedule, or the changes of one.
    pub(crate) fn changes_schedule(&self) -> bool {
        self.tag == SCHEDULES && self.body.is_some_and(|body| body.is_required)
    }

    /// All that it may be refused with.
    pub(crate) fn refusals(&self) -> Vec<Code> {
        let mut refusals = self.refuses.to_vec();
        if self.needs != Needs::Nothing {
            refusals.extend([Code::MissingCredentials, Code::InvalidCredentials]);
            refusals.extend([Code::StoreDamaged, Code::StoreUnavailable, Code::Internal]);
        }
        match self.needs {
            Needs::Nothing => {}
            // Operators' keys are no tenant's.
            Needs::Reader | Needs::Writer | Needs::Admin | Needs::Operator => refusals.push(Code::RoleForbidden),
            Needs::AdminOf => refusals.extend([Code::RoleForbidden, Code::TenantNotFound]),
        }
        // Even one that takes no parameter refuses those that it does not know.
        if self.needs != Needs::Nothing {
            refusals.push(Code::InvalidParameter);
        }
        if self.parameters.contains(&Parameter::IfMatch) {
            refusals.push(Code::PreconditionFailed);
        }
        if self.body.is_some() {
            refusals.extend([Code::BodyBroken, Code::BodyTimeout, Code::BodyTooLarge, Code::UnsupportedMediaType]);
            refusals.push(Code::MalformedJson);
        }
        refusals
    }
}

pub(crate) fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
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

/// Lines are read one by one: the media type has no schema of its own in OpenAPI 3.1.
pub(crate) fn batch_lines(generator: &mut SchemaGenerator) -> Value {
    of::<api::ScheduleRequest>(generator);
    json!({ "type": "string", "description": "Lines, each a `ScheduleRequest` as JSON" })
}

pub(crate) fn summary(generator: &mut SchemaGenerator) -> Value {
    of::<api::ScheduleSummary<'_>>(generator)
}

pub(crate) fn summary_or_dry_run(generator: &mut SchemaGenerator) -> Value {
    json!({ "anyOf": [summary(generator), of::<api::DryRun>(generator)] })
}

pub(crate) fn status(_: &mut SchemaGenerator) -> Value {
    let status = json!({ "enum": ["ok", "ready", "storage_full"] });
    json!({ "type": "object", "properties": { "status": status }, "required": ["status"] })
}
