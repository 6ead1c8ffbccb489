//! Entries of the routes of runs and explanations in the table of routes.

use super::{PAGE, Routes, explain, report, run_listing, runs};
use crate::rejection::Code;
use crate::route::Needs::{Reader, Writer};
use crate::route::Parameter::{self, DeadLetter, Label, Limit, PageToken};
use crate::route::{Content, ResponseSpec, ok, schedules as schedules_route, schema_of};

const RUN_PARAMETERS: &[Parameter] = &[
    Parameter::From,
    Parameter::Until,
    Parameter::RunState,
    Parameter::Schedule,
    Label,
    Parameter::Host,
    Parameter::Status,
    Parameter::LateBy,
    Parameter::RunOrder,
    DeadLetter,
    Limit,
    PageToken,
];

pub(super) fn add(routes: Routes) -> Routes {
    routes
        .add(
            schedules_route(
                "GET /v1/schedules/{id}/runs",
                "listScheduleRuns",
                Reader,
                "List a schedule's runs",
                ok("A page", schema_of::<api::RunPage>),
            )
            .with(PAGE)
            .rejecting(&[Code::ScheduleNotFound]),
            runs::schedule_runs,
        )
        .add(
            schedules_route(
                "GET /v1/schedules/{id}/explain",
                "explainSchedule",
                Reader,
                "Explain why a schedule did, did not or will not fire at an instant",
                ok("The chain of causes", schema_of::<api::Explanation>),
            )
            .with(&[Parameter::At])
            .rejecting(&[Code::ScheduleNotFound]),
            explain::explain,
        )
        .add(
            schedules_route(
                "GET /v1/runs",
                "listRuns",
                Reader,
                "List runs by time, with filters; a range of time or a schedule is required",
                ok(
                    "One page, which may have fewer results than `limit` although more pages follow",
                    schema_of::<api::RunPage>,
                ),
            )
            .with(RUN_PARAMETERS)
            .rejecting(&[Code::ScheduleNotFound, Code::RunsNotIndexed]),
            run_listing::list,
        )
        .add(
            schedules_route(
                "GET /v1/report",
                "getReport",
                Reader,
                "Count the runs that have ended, by state, hour, host or label, with percentiles",
                ResponseSpec {
                    content: Content::JsonOrText(schema_of::<api::Report>, report::CSV),
                    ..ok("The report, as CSV if the header `Accept` lists `text/csv` first", schema_of::<api::Report>)
                },
            )
            .with(&[
                Parameter::ReportFrom,
                Parameter::ReportTo,
                Parameter::ReportBy,
                Parameter::ReportState,
            ]),
            report::report,
        )
        .add(
            schedules_route(
                "GET /v1/runs/{id}",
                "getRun",
                Reader,
                "Read a run by the `webhook-id` of its callbacks",
                ok("The run", schema_of::<api::Run>),
            )
            .rejecting(&[Code::RunNotFound]),
            runs::get,
        )
        .add(
            schedules_route(
                "POST /v1/runs/{id}/redrive",
                "redriveRun",
                Writer,
                "Redrive a dead letter at once",
                ok("The run was redriven", schema_of::<api::Redriven>),
            )
            .rejecting(&[Code::RunNotFound, Code::NotDeadLetter, Code::StorageFull]),
            runs::redrive,
        )
}
