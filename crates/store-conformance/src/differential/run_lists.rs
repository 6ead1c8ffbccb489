//! Comparison of an engine's listings of runs by time with the runs that the model has.

use std::time::Duration;

use domain::occurrence::Run;
use domain::{Incarnation, RunFilter, RunOutline, RunStateKind, TenantId, Timestamp};
use store::runs::SCHEDULES_MAX;
use store::{Order, RunRead, Store};

use super::same;
use crate::fixture::minute;

const ORDERS: [Order; 2] = [Order::Oldest, Order::Newest];

/// Compares the engine's listings of the tenant's runs with `runs`, which are all runs of the tenant in the model.
/// `known` are schedules of all tenants.
pub(super) async fn compare(
    engine: &dyn Store,
    tenant: TenantId,
    mut runs: Vec<Run>,
    known: &[Incarnation],
    limit: usize,
    context: &str,
) {
    runs.sort_by_key(|run| run.occurrence.by_time());
    let some: Vec<_> = known.iter().copied().step_by(2).take(SCHEDULES_MAX).collect();
    for (number, (filter, range, of_schedules)) in filters().into_iter().enumerate() {
        let (from, until) = range.unwrap_or((Timestamp::MIN, Timestamp::MAX));
        let schedules = of_schedules.then(|| some.clone());
        let is_wanted = |run: &&Run| {
            let of = run.occurrence;
            filter.matches(&RunOutline::of(run))
                && (from..until).contains(&of.nominal)
                && schedules.as_ref().is_none_or(|schedules| schedules.contains(&of.incarnation))
        };
        let mut wanted: Vec<Run> = runs.iter().filter(is_wanted).cloned().collect();
        // Both orders of each filter would take too much time, except for the listing of all runs.
        let orders = if number == 0 { &ORDERS[..] } else { &ORDERS[number % 2..][..1] };
        for order in orders.iter().copied() {
            if order == Order::Newest {
                wanted.reverse();
            }
            let schedules = schedules.clone();
            let read = RunRead { tenant, schedules, from, until, filter, order, after: None, limit };
            same(&listed(engine, read).await, &wanted, context);
        }
    }
}

/// Filter and range of a listing, and `true` if the listing reads only some schedules.
type Listing = (RunFilter, Option<(Timestamp, Timestamp)>, bool);

fn filters() -> Vec<Listing> {
    let all = RunFilter::default();
    let state = |state| RunFilter { state: Some(state), ..all };
    let status = |status| RunFilter { status: Some(status), ..all };
    let late = |seconds| RunFilter { late_by: Some(Duration::from_secs(seconds)), ..all };
    let (range, failed) = (Some((minute(2), minute(5))), state(RunStateKind::Failed));
    let mut filters: Vec<_> =
        [all].into_iter().chain(RunStateKind::ALL.map(state)).map(|it| (it, None, false)).collect();
    filters.extend([
        (status(503), None, false),
        (RunFilter { status: Some(204), ..failed }, None, false),
        (status(404), range, true),
        (late(0), None, true),
        (late(60), None, false),
        (RunFilter { state: Some(RunStateKind::Retrying), ..late(1) }, range, false),
        (RunFilter { status: Some(503), ..late(1) }, None, false),
        (all, range, false),
        (failed, range, true),
        (all, None, true),
    ]);
    filters
}

/// Returns the runs of all pages.
async fn listed(store: &dyn Store, mut read: RunRead) -> Vec<Run> {
    let mut runs = Vec::new();
    loop {
        let list = store.list_runs(read.clone()).await.expect("the store accepts reads");
        assert_eq!(list.unreadable, 0, "the store can read every run");
        runs.extend(list.runs);
        read.after = list.next;
        if list.next.is_none() {
            return runs;
        }
    }
}
