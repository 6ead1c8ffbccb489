//! What each route takes, answers and refuses. A route that is not told here does not compile.

use crate::metrics::Route;
use crate::refusal::Kind;

/// Who may send it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Needs {
    Nothing,
    Reader,
    Writer,
    /// Of the key's own tenant.
    Admin,
    /// Of the tenant in the path, or an operator.
    AdminOf,
    Operator,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Schema {
    AuditPage,
    BatchLines,
    Cancelled,
    DryRun,
    Key,
    KeyList,
    KeyMade,
    KeyRequest,
    QuotaSheet,
    Quotas,
    Redriven,
    RunPage,
    Schedule,
    SchedulePage,
    SchedulePatch,
    ScheduleRequest,
    ScheduleSummary,
    /// Or that of a dry run.
    SummaryOrDryRun,
    SigningSecret,
    SigningSecretList,
    SigningSecretMade,
    Status,
    Tenant,
    TenantList,
    TenantMade,
    TenantPatch,
    TenantRequest,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Parameter {
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

#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    Json(Schema),
    Lines,
    Nothing,
    /// With its media type.
    Text(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) what: &'static str,
    pub(super) content: Content,
    pub(super) headers: &'static [&'static str],
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Body {
    pub(super) media: &'static [&'static str],
    pub(super) schema: Schema,
    pub(super) is_required: bool,
}

pub(super) struct Operation {
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    pub(super) needs: Needs,
    pub(super) parameters: &'static [Parameter],
    pub(super) body: Option<Body>,
    pub(super) answers: Vec<Answer>,
    /// Beside what follows from the rest.
    refuses: &'static [Kind],
}

const JSON: &[&str] = &["application/json"];
const MERGE: &[&str] = &["application/merge-patch+json", "application/json"];
const PAGE: &[Parameter] = &[Parameter::Limit, Parameter::PageToken];

/// Whatever can be done if the schedule is as it was read.
const CONDITIONS: &[Parameter] = &[Parameter::IfMatch, Parameter::IfNoneMatch];
const CHANGING: &[Parameter] = &[Parameter::IfMatch, Parameter::IfNoneMatch, Parameter::DryRun];
const TAG: &[&str] = &["ETag"];
const PLACE: &[&str] = &["ETag", "Location"];

fn ok(what: &'static str, schema: Schema) -> Answer {
    Answer { status: 200, what, content: Content::Json(schema), headers: &[] }
}

fn made(what: &'static str, schema: Schema) -> Answer {
    Answer { status: 201, ..ok(what, schema) }
}

impl Operation {
    fn new(tag: &'static str, summary: &'static str, needs: Needs, answer: Answer) -> Self {
        Operation { tag, summary, needs, parameters: &[], body: None, answers: vec![answer], refuses: &[] }
    }

    fn of_schedules(summary: &'static str, needs: Needs, answer: Answer) -> Self {
        Operation::new("schedules", summary, needs, answer)
    }

    fn of_tenants(summary: &'static str, needs: Needs, answer: Answer) -> Self {
        Operation::new("tenants", summary, needs, answer)
    }

    fn of_operation(summary: &'static str, answer: Answer) -> Self {
        Operation::new("operation", summary, Needs::Nothing, answer)
    }

    fn taking(self, schema: Schema) -> Self {
        Operation { body: Some(Body { media: JSON, schema, is_required: true }), ..self }
    }

    fn merging(self, schema: Schema) -> Self {
        Operation { body: Some(Body { media: MERGE, schema, is_required: true }), ..self }
    }

    fn with(self, parameters: &'static [Parameter]) -> Self {
        Operation { parameters, ..self }
    }

    fn or(mut self, answer: Answer) -> Self {
        self.answers.push(answer);
        self
    }

    fn refusing(self, refuses: &'static [Kind]) -> Self {
        Operation { refuses, ..self }
    }

    /// The names in the route's path.
    pub(super) fn path_parameters(&self, route: Route) -> impl Iterator<Item = &'static str> + use<> {
        route.name().split('{').skip(1).filter_map(|part| Some(part.split_once('}')?.0))
    }

    /// All that it may be refused with.
    pub(super) fn refusals(&self) -> Vec<Kind> {
        let mut refusals = self.refuses.to_vec();
        if self.needs != Needs::Nothing {
            refusals.extend([Kind::MissingCredentials, Kind::InvalidCredentials]);
            refusals.extend([Kind::StoreDamaged, Kind::StoreUnavailable, Kind::Internal]);
        }
        match self.needs {
            Needs::Nothing => {}
            // Operators' keys are no tenant's.
            Needs::Reader | Needs::Writer | Needs::Admin | Needs::Operator => refusals.push(Kind::RoleForbidden),
            Needs::AdminOf => refusals.extend([Kind::RoleForbidden, Kind::TenantNotFound]),
        }
        // Even one that takes no parameter refuses those that it does not know.
        if self.needs != Needs::Nothing {
            refusals.push(Kind::InvalidParameter);
        }
        if self.parameters.contains(&Parameter::IfMatch) {
            refusals.push(Kind::PreconditionFailed);
        }
        if self.body.is_some() {
            refusals.extend([Kind::BodyBroken, Kind::BodyTimeout, Kind::BodyTooLarge, Kind::UnsupportedMediaType]);
            refusals.push(Kind::MalformedJson);
        }
        refusals
    }
}

/// Of a schedule that is made or replaced.
const MAKING: &[Kind] = &[
    Kind::IdempotencyKeyReused,
    Kind::InvalidSchedule,
    Kind::NotUtf8,
    Kind::QuotaExceeded,
    Kind::RateExceeded,
    Kind::ScheduleExists,
    Kind::StorageFull,
];
/// Of a tenant's settings.
const SETTING: &[Kind] = &[Kind::InvalidRequest, Kind::QuotaCeiling, Kind::StorageFull];

/// `None`: of what is at none of the API's paths, and of the pages that tell about it.
pub(super) fn operation(route: Route) -> Option<Operation> {
    let operation = match route {
        Route::Create => Operation::of_schedules(
            "Make a schedule",
            Needs::Writer,
            Answer { headers: PLACE, ..made("It is made", Schema::ScheduleSummary) },
        )
        .or(ok("What a dry run would make", Schema::DryRun))
        .with(&[Parameter::DryRun, Parameter::IdempotencyKey])
        .taking(Schema::ScheduleRequest)
        .refusing(MAKING),
        Route::List => Operation::of_schedules(
            "List schedules: all, or those of one state, of one label, or due within 24 hours",
            Needs::Reader,
            ok("A page, which may be short and yet not the last", Schema::SchedulePage),
        )
        .with(&[
            Parameter::State,
            Parameter::Label,
            Parameter::DueFrom,
            Parameter::DueUntil,
            Parameter::Limit,
            Parameter::PageToken,
        ]),
        Route::Batch => Operation {
            // A batch without a line is one.
            body: Some(Body { media: &[api::NDJSON_CONTENT_TYPE], schema: Schema::BatchLines, is_required: false }),
            ..Operation::of_schedules(
                "Make many schedules: one a line in, one result (`BatchLine`) a line out, in order",
                Needs::Writer,
                Answer { content: Content::Lines, ..ok("A result for each line", Schema::BatchLines) },
            )
        }
        .refusing(&[Kind::BatchTooLong]),
        Route::Get => Operation::of_schedules(
            "Read a schedule",
            Needs::Reader,
            Answer { headers: TAG, ..ok("The schedule", Schema::Schedule) },
        )
        .or(Answer { status: 304, what: "It is as it was read", content: Content::Nothing, headers: TAG })
        .with(CONDITIONS)
        .refusing(&[Kind::ScheduleNotFound]),
        Route::Put => Operation::of_schedules(
            "Make the schedule of this id, or replace it",
            Needs::Writer,
            ok("It is replaced; or what a dry run would make", Schema::SummaryOrDryRun),
        )
        .or(Answer { headers: PLACE, ..made("It is made", Schema::ScheduleSummary) })
        .with(CHANGING)
        .taking(Schema::ScheduleRequest)
        .refusing(MAKING),
        Route::Patch => Operation::of_schedules(
            "Change what the body names of a schedule (RFC 7396)",
            Needs::Writer,
            ok("It is changed; or what a dry run would make of it", Schema::SummaryOrDryRun),
        )
        .with(CHANGING)
        .merging(Schema::SchedulePatch)
        .refusing(&[
            Kind::InvalidSchedule,
            Kind::NotUtf8,
            Kind::QuotaExceeded,
            Kind::RateExceeded,
            Kind::ScheduleNotFound,
            Kind::ScheduleOver,
            Kind::StorageFull,
        ]),
        Route::Cancel => Operation::of_schedules(
            "Cancel a schedule",
            Needs::Writer,
            ok("`cancelled`, or `too_late` for an attempt that is in flight", Schema::Cancelled),
        )
        .or(Answer { status: 202, ..ok("`pending`: it is cancelled by `decided_by`", Schema::Cancelled) })
        .with(CONDITIONS)
        .refusing(&[Kind::ScheduleNotFound, Kind::StorageFull]),
        Route::ScheduleRuns => {
            Operation::of_schedules("List a schedule's runs", Needs::Reader, ok("A page", Schema::RunPage))
                .with(PAGE)
                .refusing(&[Kind::ScheduleNotFound])
        }
        Route::Runs => Operation::of_schedules("List dead letters", Needs::Reader, ok("A page", Schema::RunPage))
            .with(&[Parameter::DeadLetter, Parameter::Limit, Parameter::PageToken]),
        Route::Redrive => Operation::of_schedules(
            "Run a dead letter again, at once",
            Needs::Writer,
            ok("It is run again", Schema::Redriven),
        )
        .refusing(&[Kind::RunNotFound, Kind::NotDeadLetter, Kind::StorageFull]),
        Route::Quotas => {
            Operation::of_tenants("What the tenant may use", Needs::Reader, ok("As it is", Schema::QuotaSheet))
        }
        Route::PatchQuotas => Operation::of_tenants(
            "Set quotas, up to their ceilings",
            Needs::Admin,
            ok("As it is now", Schema::QuotaSheet),
        )
        .taking(Schema::Quotas)
        .refusing(SETTING),
        Route::Tenants => Operation::of_tenants("List tenants", Needs::Operator, ok("All", Schema::TenantList)),
        Route::CreateTenant => Operation::of_tenants(
            "Make a tenant",
            Needs::Operator,
            made("With its first key and signing secret, which are told once", Schema::TenantMade),
        )
        .taking(Schema::TenantRequest)
        .refusing(&[Kind::InvalidRequest, Kind::QuotaCeiling, Kind::StorageFull, Kind::TenantExists]),
        Route::Tenant => Operation::of_tenants("Read a tenant", Needs::AdminOf, ok("The tenant", Schema::Tenant)),
        Route::PatchTenant => Operation::of_tenants(
            "Change a tenant's quotas, ceilings and egress (RFC 7396)",
            Needs::Operator,
            ok("As it is now", Schema::Tenant),
        )
        .merging(Schema::TenantPatch)
        .refusing(&[Kind::InvalidRequest, Kind::QuotaCeiling, Kind::StorageFull, Kind::TenantNotFound]),
        Route::Keys => Operation::of_tenants("List keys", Needs::AdminOf, ok("All", Schema::KeyList)),
        Route::CreateKey => Operation::of_tenants(
            "Make a key",
            Needs::AdminOf,
            made("With its secret, which is told once", Schema::KeyMade),
        )
        .taking(Schema::KeyRequest)
        .refusing(&[Kind::InvalidRequest, Kind::StorageFull, Kind::TooMany]),
        Route::RevokeKey => Operation::of_tenants("Revoke a key", Needs::AdminOf, ok("What it was", Schema::Key))
            .refusing(&[Kind::KeyNotFound, Kind::LastOne, Kind::StorageFull]),
        Route::Secrets => {
            Operation::of_tenants("List signing secrets", Needs::AdminOf, ok("All", Schema::SigningSecretList))
        }
        Route::CreateSecret => Operation::of_tenants(
            "Make a signing secret",
            Needs::AdminOf,
            made("With the secret, which is told once", Schema::SigningSecretMade),
        )
        .refusing(&[Kind::InvalidRequest, Kind::StorageFull, Kind::TooMany]),
        Route::DeleteSecret => {
            Operation::of_tenants("Delete a signing secret", Needs::AdminOf, ok("What it was", Schema::SigningSecret))
                .refusing(&[Kind::KeyNotFound, Kind::LastOne, Kind::StorageFull])
        }
        Route::Audit => {
            Operation::of_tenants("What was changed about a tenant", Needs::AdminOf, ok("A page", Schema::AuditPage))
                .with(PAGE)
        }
        Route::Health => Operation::of_operation("The process answers", ok("It does", Schema::Status)),
        Route::Ready => Operation::of_operation("Requests are taken", ok("They are", Schema::Status))
            .refusing(&[Kind::StoreUnavailable, Kind::Stopping]),
        Route::Metrics => Operation::of_operation(
            "What is counted, as OpenMetrics text",
            Answer { content: Content::Text("application/openmetrics-text"), ..ok("All of it", Schema::Status) },
        ),
        Route::Document | Route::Page | Route::Unknown => return None,
    };
    Some(operation)
}
