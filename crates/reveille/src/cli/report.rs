//! Command `reveille report`, which counts runs by state, label, host or hour.

mod plot;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use cli_support::console;
use domain::duration;
use reveille_client::api::{Percentiles, Report, ReportBy, ReportGroup, ReportRow};
use reveille_client::{ReportQuery, RunState, Time};
use runtime::Runtime;

use super::Output;
use super::connect::{Connect, DefaultKey};
use super::explain::explain;
use super::run::before;
use super::schedule::list::instant;
use super::show::{self, or_dash};

#[derive(Args, Debug)]
pub(crate) struct Command {
    /// Start of the range of due instants (RFC 3339), rounded down to a whole hour
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    from: Option<Time>,
    /// End of the range of due instants, exclusive (RFC 3339), rounded up to a whole hour [default: now]
    #[arg(long, value_name = "INSTANT", value_parser = instant, requires = "from")]
    to: Option<Time>,
    /// Duration of the range that ends now, instead of --from [default: 24h without --from]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "from")]
    last: Option<Duration>,
    /// Property by which the report has rows
    #[arg(long, value_enum, default_value_t = By::State)]
    by: By,
    /// State of the runs to count [default: all final states]
    #[arg(long)]
    state: Option<State>,
    /// Format of the report
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// File for a plot of the range by hour, as SVG: the numbers of runs, and the percentiles of their lateness
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum By {
    State,
    Label,
    Host,
    Hour,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum State {
    Succeeded,
    Failed,
    Missed,
    Cancelled,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum Format {
    Table,
    Json,
    Csv,
}

/// Length of the range of a report without a range.
const LAST_DEFAULT: Duration = Duration::from_secs(24 * 3_600);

impl Command {
    fn query(&self, now: Time) -> ReportQuery {
        let by = match self.by {
            By::State => ReportBy::State,
            By::Label => ReportBy::Label,
            By::Host => ReportBy::Host,
            By::Hour => ReportBy::Hour,
        };
        let state = self.state.map(|state| match state {
            State::Succeeded => RunState::Succeeded,
            State::Failed => RunState::Failed,
            State::Missed => RunState::Missed,
            State::Cancelled => RunState::Cancelled,
        });
        let from = self.from.unwrap_or_else(|| before(now, self.last.unwrap_or(LAST_DEFAULT)));
        ReportQuery { from, to: self.to, by, state }
    }
}

pub(super) async fn execute(runtime: &Runtime, arguments: Command) -> anyhow::Result<()> {
    let query = arguments.query(Time(runtime.now().as_millis()));
    let client = arguments.connect.client(DefaultKey::Admin)?;
    let report = client.report(&query).await.map_err(|error| explain(&client, &error))?;
    match arguments.format {
        _ if arguments.output.json => show::json(&report)?,
        Format::Json => show::json(&report)?,
        Format::Csv => {
            let csv = client.report_csv(&query).await.map_err(|error| explain(&client, &error))?;
            console::line(csv.trim_end())?;
        }
        Format::Table => show_table(&report)?,
    }
    if let Some(counted_from) = report.counted_from {
        show::warn(&format!("the counts are complete from {counted_from}; runs that were due earlier may be missing"));
    }
    if let Some(file) = &arguments.plot {
        let query = ReportQuery { by: ReportBy::Hour, ..query };
        let hours = client.report(&query).await.map_err(|error| explain(&client, &error))?;
        std::fs::write(file, plot::svg(&hours))
            .with_context(|| format!("cannot write the plot to {}; choose another file", file.display()))?;
    }
    Ok(())
}

fn show_table(report: &Report) -> anyhow::Result<()> {
    let heads = [
        "group",
        "runs",
        "succeeded",
        "failed",
        "missed",
        "cancelled",
        "late p50",
        "late p99",
        "late max",
        "took p50",
        "took p99",
    ];
    let rows: Vec<_> = report.rows.iter().map(row).collect();
    show::table(heads, &rows)
}

fn row(row: &ReportRow) -> [String; 11] {
    let states = [row.states.succeeded, row.states.failed, row.states.missed, row.states.cancelled];
    let [succeeded, failed, missed, cancelled] = states.map(|runs| runs.to_string());
    let millis = |of: &Option<Percentiles>, value: fn(&Percentiles) -> u64| {
        or_dash(of.as_ref().map(|of| format!("{} ms", value(of))))
    };
    [
        name_of(row),
        row.runs.to_string(),
        succeeded,
        failed,
        missed,
        cancelled,
        millis(&row.lateness_ms, |of| of.p50),
        millis(&row.lateness_ms, |of| of.p99),
        millis(&row.lateness_ms, |of| of.max),
        millis(&row.duration_ms, |of| of.p50),
        millis(&row.duration_ms, |of| of.p99),
    ]
}

/// Returns the name of a row for people. Users choose labels and hosts, so the name contains no character that a
/// terminal does not show.
fn name_of(row: &ReportRow) -> String {
    let name = match (&row.group, &row.name, &row.value) {
        (ReportGroup::Value, Some(name), Some(value)) => format!("{name}={value}"),
        (ReportGroup::Value, None, Some(value)) => value.clone(),
        (ReportGroup::None, ..) => "(none)".to_owned(),
        (_, Some(name), _) => format!("{name} (other values)"),
        (_, None, _) => "(others)".to_owned(),
    };
    show::foreign_lines(&name, usize::MAX).concat()
}
