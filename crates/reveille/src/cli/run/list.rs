//! Command `reveille run list`, which lists runs by time, and can follow new runs.

use std::time::Duration;

use clap::{Args, ValueEnum};
use domain::duration;
use reveille_client::api::RunPage;
use reveille_client::{Client, RunOrder, RunQuery, RunState, Time};
use runtime::Runtime;

use super::follow::{Start, follow};
use super::{Page, show_page};
use crate::cli::Output;
use crate::cli::connect::{Connect, DefaultKey};
use crate::cli::explain::explain;
use crate::cli::schedule::list::{instant, label};
use crate::cli::show;
use crate::progress::Progress;

/// Filter of a list of runs, without its range.
#[derive(Args, Debug)]
pub(crate) struct Filter {
    /// State of the runs to list
    #[arg(long)]
    state: Option<State>,
    /// Id of the schedule whose runs to list
    #[arg(long, value_name = "ID")]
    schedule: Option<String>,
    /// Label that the schedules of the runs have now, as NAME:VALUE
    #[arg(long, value_name = "NAME:VALUE", value_parser = label)]
    label: Option<(String, String)>,
    /// Host of the target that the schedules of the runs have now, without a port
    #[arg(long)]
    host: Option<String>,
    /// HTTP status of at least one attempt of the runs
    #[arg(long, value_parser = clap::value_parser!(u16).range(100..=999))]
    status: Option<u16>,
    /// Minimum duration from the due instant to the start of the first attempt, for example 5s
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    late_by: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct List {
    #[command(flatten)]
    filter: Filter,
    /// Earliest due instant of the runs to list (RFC 3339)
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    from: Option<Time>,
    /// End of the range of due instants, exclusive (RFC 3339)
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    until: Option<Time>,
    /// Duration of the range that ends now, instead of --from [default: 1h without --from and --schedule]. With
    /// --page-token, the list continues in the range of the previous page
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "from")]
    last: Option<Duration>,
    /// Order of the list: the newest or the oldest run first [default: newest]
    #[arg(long)]
    order: Option<Order>,
    /// Follow the runs: print each run once, the oldest first, and then wait for further runs. Starts now, or at --from
    /// or --last
    #[arg(long, conflicts_with_all = ["until", "order", "limit", "page_token"])]
    follow: bool,
    /// Maximum time between the due instant and the outcome of a run that --follow prints [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "follow")]
    window: Option<Duration>,
    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum State {
    Retrying,
    Succeeded,
    Failed,
    Missed,
    Cancelled,
}

/// Value of `--order`.
#[derive(Clone, Copy, ValueEnum, Debug)]
enum Order {
    Newest,
    Oldest,
}

/// Length of the range of a list without a range.
const LAST_DEFAULT: Duration = Duration::from_secs(3_600);
const WINDOW_DEFAULT: Duration = Duration::from_secs(60);

impl Filter {
    /// Returns the query without a range and with the default order.
    pub(super) fn query(&self) -> RunQuery {
        let state = self.state.map(|state| match state {
            State::Retrying => RunState::Retrying,
            State::Succeeded => RunState::Succeeded,
            State::Failed => RunState::Failed,
            State::Missed => RunState::Missed,
            State::Cancelled => RunState::Cancelled,
        });
        RunQuery {
            state,
            schedule: self.schedule.clone(),
            label: self.label.clone(),
            host: self.host.clone(),
            status: self.status,
            late_by: self.late_by,
            ..RunQuery::default()
        }
    }
}

impl List {
    fn query(&self, now: Time) -> RunQuery {
        // A page token contains its range, which ended at the time of the first page.
        let last = match (&self.page.page_token, &self.filter.schedule) {
            (Some(_), _) => None,
            (None, Some(_)) => self.last,
            (None, None) => self.last.or(Some(LAST_DEFAULT)),
        };
        let order = match self.order {
            Some(Order::Oldest) => RunOrder::Oldest,
            Some(Order::Newest) | None => RunOrder::Newest,
        };
        let from = self.from.or(last.map(|last| before(now, last)));
        RunQuery { from, until: self.until, order, ..self.filter.query() }
    }
}

pub(in crate::cli) fn before(time: Time, duration: Duration) -> Time {
    Time(time.0.saturating_sub(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)).max(0))
}

pub(super) async fn list(runtime: &Runtime, arguments: List) -> anyhow::Result<()> {
    let query = arguments.query(Time(runtime.now().as_millis()));
    if arguments.follow {
        let start = arguments.from.map_or(Start::Before(arguments.last.unwrap_or_default()), Start::At);
        let window = arguments.window.unwrap_or(WINDOW_DEFAULT);
        return follow(runtime, arguments.connect, query, start, window, arguments.output).await;
    }
    let client = arguments.connect.client(DefaultKey::Admin)?;
    let Page { limit, page_token } = &arguments.page;
    let page = whole_page(runtime, &client, &query, *limit, page_token.as_deref()).await;
    let page = page.map_err(|error| explain(&client, &error))?;
    show_page(&page, arguments.output)?;
    if page.unreadable > 0 {
        show::warn_of_unreadable(page.unreadable);
    }
    Ok(())
}

/// Returns a page with `limit` runs, or with all remaining runs. The server may divide these runs into several pages,
/// because it limits the time for one page.
async fn whole_page(
    runtime: &Runtime,
    client: &Client,
    query: &RunQuery,
    limit: u16,
    token: Option<&str>,
) -> Result<RunPage, reveille_client::Error> {
    let mut progress = Progress::new(runtime);
    let mut page = client.list_runs_page(query, limit, token).await?;
    while let Some(token) = page.next_page_token.take() {
        let missing = limit.saturating_sub(u16::try_from(page.runs.len()).unwrap_or(u16::MAX));
        if missing == 0 {
            page.next_page_token = Some(token);
            break;
        }
        let next = client.list_runs_page(query, missing, Some(&token)).await?;
        page.runs.extend(next.runs);
        page.unreadable += next.unreadable;
        page.next_page_token = next.next_page_token;
        progress.update(|| format!("{} runs found", page.runs.len()));
    }
    Ok(page)
}
