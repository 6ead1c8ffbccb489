//! Command `reveille run list`, which lists runs by time, and can follow new runs.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use domain::duration;
use reveille_client::api::RunPage;
use reveille_client::{Client, Run, RunOrder, RunQuery, RunState, Time};
use runtime::Runtime;

use super::{Page, row, show_page};
use crate::cli::Output;
use crate::cli::connect::{Connect, DefaultKey};
use crate::cli::explain::explain;
use crate::cli::schedule::list::{instant, label};
use crate::cli::show;
use crate::progress::Progress;

#[derive(Args, Debug)]
pub(crate) struct List {
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
    /// Earliest due instant of the runs to list (RFC 3339)
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    from: Option<Time>,
    /// End of the range of due instants, exclusive (RFC 3339)
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    until: Option<Time>,
    /// Duration of the range that ends now, instead of --from [default: 1h without --from and --schedule]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "from")]
    last: Option<Duration>,
    /// Order of the list: the newest or the oldest run first [default: newest]
    #[arg(long)]
    order: Option<Order>,
    /// Follow the runs: print each run once, the oldest first, and then wait for further runs. Starts now, or at --from
    /// or --last
    #[arg(long, conflicts_with_all = ["until", "order", "limit", "page_token"])]
    follow: bool,
    /// Time before the newest printed run in which --follow still finds runs, because outcomes do not arrive in the
    /// order of the due instants [default: 1m]
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
/// Wait between two searches for new runs.
const FOLLOW_PERIOD: Duration = Duration::from_secs(1);
/// Number of runs in one request of `--follow`.
const FOLLOW_PAGE: u16 = 1_000;
/// Maximum number of ids that `--follow` remembers. An id needs about 100 bytes.
const SEEN_MAX: usize = 1_000_000;
/// Widths of the columns of `--follow`. The id of a run has 52 characters, and an instant has 24.
const WIDTHS: [usize; 6] = [52, 27, 10, 24, 8, 0];

impl List {
    fn query(&self, now: Time) -> RunQuery {
        let state = self.state.map(|state| match state {
            State::Retrying => RunState::Retrying,
            State::Succeeded => RunState::Succeeded,
            State::Failed => RunState::Failed,
            State::Missed => RunState::Missed,
            State::Cancelled => RunState::Cancelled,
        });
        let default = match (self.follow, &self.schedule) {
            (true, _) => Some(Duration::ZERO),
            (false, Some(_)) => None,
            (false, None) => Some(LAST_DEFAULT),
        };
        let last = self.last.or(default).map(|last| before(now, last));
        let order = match self.order {
            Some(Order::Oldest) => RunOrder::Oldest,
            Some(Order::Newest) | None => RunOrder::Newest,
        };
        RunQuery {
            state,
            schedule: self.schedule.clone(),
            label: self.label.clone(),
            host: self.host.clone(),
            status: self.status,
            late_by: self.late_by,
            from: self.from.or(last),
            until: self.until,
            order,
        }
    }
}

fn before(time: Time, duration: Duration) -> Time {
    Time(time.0.saturating_sub(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)).max(0))
}

pub(super) async fn list(runtime: &Runtime, arguments: List) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Admin)?;
    let query = arguments.query(Time(runtime.now().as_millis()));
    if arguments.follow {
        let window = arguments.window.unwrap_or(WINDOW_DEFAULT);
        return follow(runtime, &client, query, window, arguments.output).await;
    }
    let Page { limit, page_token } = &arguments.page;
    let is_fixed = arguments.from.is_some() || query.from.is_none();
    ensure!(
        is_fixed || page_token.is_none(),
        "--page-token needs the range of the previous page: use the --from that the command printed with the token"
    );
    let page = whole_page(runtime, &client, &query, *limit, page_token.as_deref()).await;
    let more = query.from.filter(|_| !is_fixed).map(|from| format!("--from {from} ")).unwrap_or_default();
    show_page(&page.map_err(|error| explain(&client, &error))?, &more, arguments.output)
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
        page.next_page_token = next.next_page_token;
        progress.update(|| format!("{} runs found", page.runs.len()));
    }
    Ok(page)
}

/// Prints runs as the server stores their outcomes, until the user stops the command.
async fn follow(
    runtime: &Runtime,
    client: &Client,
    query: RunQuery,
    window: Duration,
    output: Output,
) -> anyhow::Result<()> {
    let mut tail = Tail { start: query.from.unwrap_or(Time(0)), window, seen: BTreeSet::new() };
    if !output.json {
        let heads = ["run", "schedule", "state", "scheduled at", "attempts", "last"];
        show::open_row(&heads.map(str::to_uppercase), WIDTHS)?;
    }
    loop {
        let query = RunQuery { from: Some(tail.from()), order: RunOrder::Oldest, ..query.clone() };
        let mut token = None;
        loop {
            let page = client.list_runs_page(&query, FOLLOW_PAGE, token.as_deref()).await;
            let page = page.map_err(|error| explain(client, &error))?;
            for run in page.runs.iter().filter(|run| tail.is_new(run)) {
                match output.json {
                    true => show::json(run)?,
                    false => show::open_row(&row(run), WIDTHS)?,
                }
            }
            token = page.next_page_token;
            if token.is_none() {
                break;
            }
        }
        tail.forget_old();
        ensure!(tail.seen.len() <= SEEN_MAX, "more than {SEEN_MAX} runs are in the window; use a shorter --window");
        runtime.sleep(FOLLOW_PERIOD).await;
    }
}

/// Runs that `--follow` has printed.
struct Tail {
    start: Time,
    window: Duration,
    /// Due instants and ids of the printed runs in the window.
    seen: BTreeSet<(Time, String)>,
}

impl Tail {
    /// Returns the instant at which the next search starts: the start of the window before the newest printed run.
    fn from(&self) -> Time {
        let newest = self.seen.last().map(|(newest, _)| before(*newest, self.window));
        newest.map_or(self.start, |from| from.max(self.start))
    }

    /// Returns true if the command has not printed the run yet. The caller prints the run.
    fn is_new(&mut self, run: &Run) -> bool {
        self.seen.insert((run.scheduled_at, run.id.clone()))
    }

    /// Forgets the runs before the window. No later search finds these runs, because the window never moves back.
    fn forget_old(&mut self) {
        self.start = self.from();
        self.seen = self.seen.split_off(&(self.start, String::new()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: &str, seconds: i64) -> Run {
        let json = format!(
            r#"{{"id":"{id}","state":"succeeded","scheduled_at":"{}","revision":0,"replay":0,"attempts":[]}}"#,
            Time(seconds * 1_000)
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn followed_run_is_new_only_once() {
        let mut tail = Tail { start: Time(100_000), window: Duration::from_secs(60), seen: BTreeSet::new() };
        assert!(tail.is_new(&run("a", 130)) && !tail.is_new(&run("a", 130)));
        tail.forget_old();
        assert_eq!(tail.from(), Time(100_000), "the window starts at the start of the command or later");
        assert!(!tail.is_new(&run("a", 130)) && tail.is_new(&run("late", 105)) && tail.is_new(&run("b", 190)));
        tail.forget_old();
        assert_eq!((tail.from(), tail.seen.len()), (Time(130_000), 2));
        assert!(!tail.is_new(&run("a", 130)) && !tail.is_new(&run("b", 190)));
        assert!(tail.is_new(&run("c", 500)));
        tail.forget_old();
        assert_eq!((tail.from(), tail.seen.len()), (Time(440_000), 1));
    }
}
