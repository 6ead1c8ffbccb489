//! Trial of a restart at which many callbacks are overdue. It compares their rate with the rate of callbacks that fall
//! due while the server runs, and measures how far the callbacks arrive out of order.

use std::sync::Arc;
use std::time::Duration;

use cli_support::receiver::{Options, Receiver};
use domain::Timestamp;
use hdrhistogram::Histogram;
use runtime::Runtime;

use crate::arrivals::{Arrivals, Verdict};
use crate::fire::{self, Due};
use crate::load::latencies;
use crate::report::Row;
use crate::server::Server;

/// Time over which the due instants of the overdue callbacks are spread.
const SPREAD: Duration = Duration::from_secs(10);
/// Time from the last due instant to the restart.
const OUTAGE: Duration = Duration::from_secs(15);
/// Share of the callbacks from which the trial computes a rate.
const SHARE: f64 = 0.95;

/// Creates `count` schedules for `targets` targets, which fall due while the server runs. Then creates as many schedules
/// again, and kills the server before the first of them falls due. Restarts the server after all of them are due.
/// Returns a row for the callbacks of the running server, and a row for the overdue callbacks.
///
/// # Errors
/// Returns an error if the trial did not start the server, or if the server does not create the schedules in time.
pub(crate) async fn trial(
    runtime: &Runtime,
    server: &mut Server,
    count: u64,
    targets: u16,
) -> anyhow::Result<(Row, Row)> {
    let arrivals = Arc::new(Arrivals::logging());
    let (_receivers, urls) = receive(runtime, targets, &arrivals).await?;
    let at_once = Due::AtOnce { count };
    let planned = fire::plan(runtime, server, at_once, fire::lead(count), urls).await?;
    runtime.sleep(planned.first_at.since(runtime.now())).await;
    fire::wait(runtime, &arrivals, at_once, planned.first_at).await?;
    let on_time = arrivals.verdict(&planned.incarnations)?;
    let before = row("fire", at_once, &on_time, planned.first_at);

    let arrivals = Arc::new(Arrivals::logging());
    let (_receivers, urls) = receive(runtime, targets, &arrivals).await?;
    let spread = Due::Evenly { per_second: count.div_ceil(SPREAD.as_secs()), duration: SPREAD };
    let planned = fire::plan(runtime, server, spread, fire::lead(count), urls).await?;
    server.kill().await?;
    runtime.sleep((planned.first_at + spread.lasts() + OUTAGE).since(runtime.now())).await;
    let restarted_at = runtime.now();
    let ready_after = server.restart(runtime).await?;
    fire::wait(runtime, &arrivals, spread, restarted_at + ready_after).await?;
    let overdue = arrivals.verdict(&planned.incarnations)?;
    let first = overdue.first_micros.first().map_or(restarted_at, |(at, _)| Timestamp::from_millis(at / 1_000));
    let mut after = row("fire after a restart, overdue", spread, &overdue, first);
    after.ratio = before.per_second.zip(after.per_second).map(|(before, after)| after / before);
    after.notes.push(format!(
        "the server was ready {} ms after the restart; the first callback arrived {} ms after the restart",
        ready_after.as_millis(),
        first.since(restarted_at).as_millis()
    ));
    let order = disorder(&overdue.first_micros);
    let millis = |quantile| order.value_at_quantile(quantile) / 1_000;
    after.notes.push(format!(
        "disorder (a callback arrived after a callback that was due this much later): p50 {} ms, p99 {} ms, max {} ms",
        millis(0.5),
        millis(0.99),
        order.max() / 1_000
    ));
    Ok((before, after))
}

/// Starts a receiver for each target.
async fn receive(
    runtime: &Runtime,
    targets: u16,
    arrivals: &Arc<Arrivals>,
) -> anyhow::Result<(Vec<Receiver>, Vec<String>)> {
    let mut receivers = Vec::new();
    for _ in 0..targets {
        receivers.push(fire::receive(runtime, Options::default(), arrivals.clone()).await?);
    }
    let urls = receivers.iter().map(|receiver| fire::url_of(receiver.address)).collect();
    Ok((receivers, urls))
}

/// Returns the row of the callbacks, with their rate from `first` on.
#[expect(clippy::cast_precision_loss, reason = "counts of callbacks stay far below 2^52")]
fn row(name: &str, due: Due, verdict: &Verdict, first: Timestamp) -> Row {
    let mut row = fire::row(name, due, first, verdict);
    let seconds = fire::seconds_to_share(verdict, first, due.count(), SHARE);
    row.per_second = seconds.map(|seconds| SHARE * due.count() as f64 / seconds);
    row
}

/// Returns the times, in microseconds, by which the callbacks arrived out of order: for each callback, the difference
/// between the latest due instant of the callbacks before it and its own due instant.
fn disorder(first_micros: &[(i64, i64)]) -> Histogram<u64> {
    let mut disorder = latencies();
    let mut latest = i64::MIN;
    for (_, nominal) in first_micros {
        latest = latest.max(*nominal);
        disorder.saturating_record(u64::try_from(latest - nominal).unwrap_or(0));
    }
    disorder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disorder_is_the_time_by_which_an_earlier_arrival_was_due_later() {
        let arrivals = [(10_000, 1_000), (20_000, 4_000), (30_000, 2_000), (40_000, 3_000), (50_000, 4_000)];
        let disorder = disorder(&arrivals);
        let counts = [0, 1_000, 2_000].map(|micros| disorder.count_at(micros));
        assert_eq!((counts, disorder.len(), disorder.max()), ([3, 1, 1], 5, 2_000));
    }
}
