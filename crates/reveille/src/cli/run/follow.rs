//! Following of new runs: `reveille run list --follow`.
//!
//! The server lists runs in the order of their due instants, but it stores their outcomes in another order. The command
//! therefore searches a range of due instants again and again, and prints the runs that it has not printed yet. A search
//! that is complete has found every outcome that the server had stored at the beginning of the search. The next search
//! therefore starts shortly before that beginning, whether a run matched or not: each second, the command searches the
//! last seconds, and from time to time the whole window.
//!
//! Invariants:
//! - A run is printed if it matches, and if its outcome is stored within the window after its due instant.
//! - The command prints no run twice. It remembers only runs in the window, also during a search of a longer range.
//! - If the server is away, the command continues at the page that it could not read.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;
use reveille_client::{Client, Error, Run, RunOrder, RunQuery, Time};
use runtime::Runtime;

use super::list::before;
use super::row;
use crate::cli::Output;
use crate::cli::connect::{Connect, DefaultKey};
use crate::cli::explain::explain;
use crate::cli::show;

/// Wait between two searches. The wait after a search that took longer is as long as the search, so that the command
/// uses the server at most half of the time.
const PERIOD: Duration = Duration::from_secs(1);
/// Length of the range that each search searches again.
const RECENT: Duration = Duration::from_secs(3);
/// The command searches the whole window when this part of the window has passed since the last such search.
const PARTS: u32 = 10;
/// Time by which the due instant of a stored run may be after the server's time. The server's time has no fractions of
/// seconds, and the clocks of members differ.
const AHEAD: Duration = Duration::from_secs(3);
/// Wait before the command tries again to reach a server that is away. The SDK has then repeated the request for some
/// seconds.
const AWAY_PERIOD: Duration = Duration::from_secs(1);
/// Number of runs in one request.
const PAGE: u16 = 1_000;
/// Maximum number of ids that the command remembers. An id needs about 100 bytes.
const SEEN_MAX: usize = 1_000_000;
/// Widths of the columns. The id of a run has 52 characters, and an instant has 24.
const WIDTHS: [usize; 6] = [52, 27, 10, 24, 8, 0];

/// Start of the runs that the command prints.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    At(Time),
    /// Duration before the server's present time.
    Before(Duration),
}

/// Prints runs as the server stores their outcomes, until the user stops the command.
pub(super) async fn follow(
    runtime: &Runtime,
    connect: Connect,
    query: RunQuery,
    start: Start,
    window: Duration,
    output: Output,
) -> anyhow::Result<()> {
    let client = connect.client(DefaultKey::Admin)?;
    let mut source = Source { runtime, connect, client, has_responded: false, busy: Duration::ZERO };
    let now = source.time().await?;
    let start = match start {
        Start::At(start) => start,
        Start::Before(duration) => before(now, duration),
    };
    let mut tail = Tail { start, window, searched: None, seen: BTreeSet::new() };
    let mut has_warned = false;
    if !output.json {
        let heads = ["run", "schedule", "state", "scheduled at", "attempts", "last"];
        show::open_row(&heads.map(str::to_uppercase), WIDTHS)?;
    }
    loop {
        let search = tail.search(source.time().await?);
        let (from, until) = (Some(search.from), Some(search.until));
        let query = RunQuery { from, until, order: RunOrder::Oldest, ..query.clone() };
        let mut token = None::<String>;
        loop {
            let read = async |client: &Client| client.list_runs_page(&query, PAGE, token.as_deref()).await;
            let page = source.read(read).await?;
            for run in page.runs.iter().filter(|run| tail.is_new(&search, run)) {
                match output.json {
                    true => show::json(run)?,
                    false => show::open_row(&row(run), WIDTHS)?,
                }
            }
            ensure!(
                tail.seen.len() <= SEEN_MAX,
                "more than {SEEN_MAX} runs are in the window; use a shorter --window, or select fewer runs"
            );
            if page.unreadable > 0 && !has_warned {
                show::warn_of_unreadable(page.unreadable);
                has_warned = true;
            }
            token = page.next_page_token;
            if token.is_none() {
                break;
            }
        }
        tail.complete(&search);
        runtime.sleep(std::mem::take(&mut source.busy).max(PERIOD)).await;
    }
}

/// Connection to the server, which waits while the server is away.
struct Source<'a> {
    runtime: &'a Runtime,
    connect: Connect,
    client: Client,
    /// True after the first response. An earlier error ends the command, because the options may be wrong.
    has_responded: bool,
    /// Duration of all requests since the last reset of this field.
    busy: Duration,
}

impl Source<'_> {
    async fn read<T>(&mut self, request: impl AsyncFn(&Client) -> Result<T, Error>) -> anyhow::Result<T> {
        loop {
            let begin = self.runtime.monotonic();
            match request(&self.client).await {
                Ok(response) => {
                    self.has_responded = true;
                    self.busy += self.runtime.monotonic().since(begin);
                    return Ok(response);
                }
                Err(error) if self.has_responded && error.is_retryable() => {
                    show::warn(&format!("{error}; the command continues when the server responds"));
                    self.runtime.sleep(AWAY_PERIOD).await;
                    // The server may listen on another port after a restart. Its URL file is absent while it is away.
                    if let Ok(client) = self.connect.client(DefaultKey::Admin) {
                        self.client = client;
                    }
                }
                Err(error) => return Err(explain(&self.client, &error)),
            }
        }
    }

    /// Returns the server's time, or the time of this machine if a proxy removes the server's time from responses.
    async fn time(&mut self) -> anyhow::Result<Time> {
        let time = self.read(Client::server_time).await?;
        Ok(time.unwrap_or_else(|| Time(self.runtime.now().as_millis())))
    }
}

/// State between two searches.
struct Tail {
    /// Earliest due instant of later searches. It never decreases.
    start: Time,
    window: Duration,
    /// Server's times at the beginning of the last search and of the last search of the whole window. `None` before
    /// the first search.
    searched: Option<(Time, Time)>,
    /// Due instants and ids of the printed runs that a later search may find.
    seen: BTreeSet<(Time, String)>,
}

struct Search {
    /// Server's time at the beginning.
    now: Time,
    from: Time,
    until: Time,
    is_whole: bool,
    /// Earliest due instant of the searches after this one.
    next_start: Time,
}

impl Tail {
    /// Returns the search that begins now.
    fn search(&self, now: Time) -> Search {
        let (earlier, whole, is_whole) = match self.searched {
            None => (self.start, now, true),
            Some((_, whole)) if now >= after(whole, self.window / PARTS) => (before(whole, self.window), now, true),
            Some((last, whole)) => (before(last, RECENT.min(self.window)), whole, false),
        };
        let from = earlier.max(self.start);
        let next_start = before(whole, self.window).max(self.start);
        Search { now, from, until: after(now, AHEAD).max(from), is_whole, next_start }
    }

    /// Returns true if the command has not printed the run yet. The caller prints the run.
    fn is_new(&mut self, search: &Search, run: &Run) -> bool {
        let key = (run.scheduled_at, run.id.clone());
        match run.scheduled_at < search.next_start {
            // No later search finds the run.
            true => !self.seen.remove(&key),
            false => self.seen.insert(key),
        }
    }

    fn complete(&mut self, search: &Search) {
        let whole = self.searched.filter(|_| !search.is_whole).map_or(search.now, |(_, whole)| whole);
        self.searched = Some((search.now, whole));
        self.start = search.next_start;
        self.seen = self.seen.split_off(&(self.start, String::new()));
    }
}

fn after(time: Time, duration: Duration) -> Time {
    Time(time.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests;
