//! Listing of the runs of a tenant by time. The index `run_time` contains the runs of each state in the order of their
//! nominal instants (migration 0012).
//!
//! A call reads the rows of one statement. The statement reads the runs of each *part* in the order of an index, and
//! merges the parts. A part is a state or a schedule. Each part has a share of the rows that the call may read. The page
//! ends at the first part that has more runs than its share, so it omits no run.
//!
//! A call reads at most [`DAYS_MAX`] partitions. The planning of a statement over a year of daily partitions would take
//! longer than the read. A call therefore reads a slice of a long range, and may return an empty page with a cursor.
//!
//! docs/decisions/0240-list-runs-by-time.md gives the reasons for the design.

use std::collections::HashMap;

use domain::{Incarnation, Occurrence, Revision, RunOutline, RunStateKind, Timestamp};
use postgres_client::tokio_postgres::Row;
use postgres_client::tokio_postgres::types::ToSql;
use store::runs::EXAMINED_MAX;
use store::{Order, RunList, RunRead, StoreError};
use stored::run::kind_number;
use uuid::Uuid;

use crate::engine::Inner;
use crate::error::store_error;
use crate::rows::{OccurrenceColumns, limit_number, run_key_of, run_of, uuid};

/// Maximum number of daily partitions that one call reads, besides the default partition.
const DAYS_MAX: usize = 8;
/// Maximum number of descents in an index for one call: one for each part and day.
const DESCENTS_MAX: usize = 256;

/// Part of a read: the runs in one state, or the runs of one schedule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Part {
    State(RunStateKind),
    Schedule(Incarnation),
}

impl Part {
    /// Returns the parts of a read.
    fn all(read: &RunRead) -> Vec<Part> {
        match &read.schedules {
            Some(schedules) => schedules.iter().copied().map(Part::Schedule).collect(),
            None => {
                let is_wanted = |kind: &RunStateKind| read.filter.state.is_none_or(|state| state == *kind);
                RunStateKind::ALL.into_iter().filter(is_wanted).map(Part::State).collect()
            }
        }
    }

    /// Weight of the part's share. Most runs succeed, and a smaller share would end the page early.
    fn weight(self) -> usize {
        match self {
            Part::State(RunStateKind::Succeeded) => 6,
            Part::State(RunStateKind::Failed) => 3,
            Part::State(_) | Part::Schedule(_) => 1,
        }
    }
}

/// Range of nominal instants that one call reads, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Slice {
    from: i64,
    until: i64,
    /// Occurrence after which the rest of the range starts. `None` if the slice contains the rest of the range. It need
    /// not have a run.
    rest: Option<Occurrence>,
}

impl Slice {
    /// Returns the first slice of the read that contains at most `days_max` of the partitions `days`, which are ranges
    /// of instants in ascending order. A slice contains every run of its range, also runs in a partition that is not in
    /// `days`. `None` if the range is empty.
    fn first_of(read: &RunRead, days: &[(i64, i64)], days_max: usize) -> Option<Slice> {
        let (mut from, mut until) = (read.from.as_millis(), read.until.as_millis());
        if let Some(after) = read.after {
            let nominal = after.nominal.as_millis();
            match read.order {
                Order::Oldest if after == last_at(nominal) => from = from.max(nominal.saturating_add(1)),
                Order::Oldest => from = from.max(nominal),
                Order::Newest if after == first_at(nominal) => until = until.min(nominal),
                Order::Newest => until = until.min(nominal.saturating_add(1)),
            }
        }
        if from >= until {
            return None;
        }
        let mut inside = days.iter().filter(|(start, end)| *end > from && *start < until);
        let cut = match read.order {
            Order::Oldest => inside.nth(days_max).map(|(start, _)| *start),
            Order::Newest => {
                let mut inside = inside.rev().skip(days_max - 1);
                inside.next().zip(inside.next()).map(|((start, _), _)| *start)
            }
        };
        Some(match (cut, read.order) {
            (None, _) => Slice { from, until, rest: None },
            (Some(cut), Order::Oldest) => Slice { from, until: cut, rest: Some(last_at(cut - 1)) },
            (Some(cut), Order::Newest) => Slice { from: cut, until, rest: Some(first_at(cut)) },
        })
    }

    /// Returns the statement that reads one page of the slice. Its text contains the range, so that PostgreSQL plans it
    /// for the partitions of the slice only.
    fn statement(&self, order: Order, are_schedules: bool) -> String {
        let Slice { from, until, .. } = self;
        let (part, type_name) = if are_schedules { ("incarnation", "uuid") } else { ("state", "smallint") };
        let (after, direction) = match order {
            Order::Oldest => (">", "asc"),
            Order::Newest => ("<", "desc"),
        };
        let sorted = format!("order by r.nominal {direction}, r.incarnation {direction}, r.version {direction}");
        format!(
            "select r.tenant, r.incarnation, r.nominal, r.version, r.state, r.value
             from unnest($2::{type_name}[], $3::bigint[]) as s ({part}, share)
             cross join lateral (
                 select * from reveille.run r
                 where r.tenant = $1 and r.{part} = s.{part}
                 and r.nominal >= '{from}'::bigint and r.nominal < '{until}'::bigint
                 and (r.nominal, r.incarnation, r.version) {after} ($4, $5, $6)
                 {sorted} limit s.share) r
             {sorted} limit $7"
        )
    }
}

/// Returns the first occurrence that an instant can have.
fn first_at(nominal: i64) -> Occurrence {
    let nominal = Timestamp::from_millis(nominal);
    Occurrence { nominal, incarnation: Incarnation(0), revision: Revision(0), replay: 0 }
}

/// Returns the last occurrence that an instant can have.
fn last_at(nominal: i64) -> Occurrence {
    let nominal = Timestamp::from_millis(nominal);
    let (incarnation, revision) = (Incarnation(u128::MAX), Revision(u32::MAX));
    Occurrence { nominal, incarnation, revision, replay: u16::MAX }
}

impl Inner {
    pub(crate) async fn list_runs(&self, read: &RunRead) -> Result<RunList, StoreError> {
        if read.schedules.is_none() {
            self.check_run_index().await?;
        }
        let parts = Part::all(read);
        let days_max = (DESCENTS_MAX / parts.len().max(1)).clamp(1, DAYS_MAX);
        let slice = match parts.is_empty() {
            true => None,
            false => Slice::first_of(read, &self.run_days().await?, days_max),
        };
        let Some(slice) = slice else { return Ok(RunList::default()) };
        // This method compares the conditions that the statement does not contain with the decoded runs.
        let is_by_state = read.filter.status.is_none() && read.filter.late_by.is_none();
        let is_exact = is_by_state && (read.schedules.is_none() || read.filter.state.is_none());
        let examined_max = if is_exact { read.limit.min(EXAMINED_MAX) } else { EXAMINED_MAX };
        let shares = shares(&parts, examined_max);
        let rows = self.read_slice(read, slice, &parts, &shares, examined_max).await?;
        let mut list = page_of(read, &rows, parts.into_iter().zip(shares).collect(), examined_max);
        list.next = list.next.or(slice.rest);
        Ok(list)
    }

    async fn read_slice(
        &self,
        read: &RunRead,
        slice: Slice,
        parts: &[Part],
        shares: &[usize],
        examined_max: usize,
    ) -> Result<Vec<Row>, StoreError> {
        let tenant = i64::from(read.tenant.0);
        let (mut states, mut schedules): (Vec<i16>, Vec<Uuid>) = (Vec::new(), Vec::new());
        for part in parts {
            match part {
                Part::State(kind) => states.push(i16::from(kind_number(*kind))),
                Part::Schedule(incarnation) => schedules.push(uuid(*incarnation)),
            }
        }
        let are_schedules = !schedules.is_empty();
        let selected: &(dyn ToSql + Sync) = if are_schedules { &schedules } else { &states };
        // The statement reads one extra row of each part, and one in all, to find out whether more rows follow.
        let shares: Vec<i64> = shares.iter().map(|share| limit_number(share + 1)).collect();
        let (nominal, incarnation, version) = start_of(read);
        let rows_max = limit_number(examined_max + 1);
        let parameters: &[&(dyn ToSql + Sync)] =
            &[&tenant, selected, &shares, &nominal, &incarnation, &version, &rows_max];
        let statement = slice.statement(read.order, are_schedules);
        self.readers.query_once(&statement, parameters).await.map_err(store_error)
    }
}

/// Returns the share of each part: the number of its runs that a call examines at most, if it examines at most
/// `examined_max` runs. The shares and one extra row of each part are together at most [`EXAMINED_MAX`] rows.
fn shares(parts: &[Part], examined_max: usize) -> Vec<usize> {
    let all: usize = parts.iter().map(|part| part.weight()).sum();
    let share = |part: &Part| (EXAMINED_MAX * part.weight() / all).saturating_sub(1).clamp(1, examined_max);
    parts.iter().map(share).collect()
}

/// Returns the page that the rows of a statement make up. `next` is `None` if no row follows the page in the slice.
fn page_of(read: &RunRead, rows: &[Row], mut shares: HashMap<Part, usize>, examined_max: usize) -> RunList {
    let mut list = RunList { examined: rows.len().min(EXAMINED_MAX), ..RunList::default() };
    let (mut last, mut accepted) = (None, 0);
    for row in rows {
        let occurrence = run_key_of(row);
        let share = match &read.schedules {
            Some(_) => shares.get_mut(&Part::Schedule(occurrence.incarnation)),
            None => shares.iter_mut().find_map(|(part, share)| match part {
                Part::State(kind) if i16::from(kind_number(*kind)) == row.get::<_, i16>(4) => Some(share),
                Part::State(_) | Part::Schedule(_) => None,
            }),
        };
        let has_share = share.is_none_or(|share| {
            let has_share = *share > 0;
            *share = share.saturating_sub(1);
            has_share
        });
        if !has_share || accepted == examined_max || list.runs.len() == read.limit {
            list.next = last;
            return list;
        }
        (last, accepted) = (Some(occurrence), accepted + 1);
        match run_of(row) {
            Ok(run) if read.filter.matches(&RunOutline::of(&run)) => list.runs.push(run),
            Ok(_) => {}
            Err(error) => {
                list.unreadable += 1;
                let (tenant, run) = (read.tenant.0, occurrence.run_id());
                tracing::error!(tenant, %run, %error, "listing omits an unreadable run; restore the run from a backup");
            }
        }
    }
    list
}

/// Returns the nominal instant, the incarnation and the version after which the page starts.
fn start_of(read: &RunRead) -> (i64, Uuid, i64) {
    let Some(after) = read.after else {
        return match read.order {
            Order::Oldest => (i64::MIN, Uuid::nil(), i64::MIN),
            Order::Newest => (i64::MAX, Uuid::max(), i64::MAX),
        };
    };
    let start: OccurrenceColumns = [after].iter().collect();
    (start.nominals[0], start.incarnations[0], start.versions[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::{RunFilter, TenantId};

    fn read(order: Order, from: i64, until: i64) -> RunRead {
        let (from, until) = (Timestamp::from_millis(from), Timestamp::from_millis(until));
        let filter = RunFilter::default();
        RunRead { tenant: TenantId(1), schedules: None, from, until, filter, order, after: None, limit: 10 }
    }

    #[test]
    fn slices_cover_the_range_without_overlap() {
        let days: Vec<(i64, i64)> =
            [(i64::MIN, 100)].into_iter().chain((2..9).map(|day| (day * 100, day * 100 + 100))).collect();
        for (order, from, until) in [(Order::Oldest, 0, 10_000), (Order::Newest, 0, 10_000), (Order::Newest, 250, 701)]
        {
            for days_max in 1..12 {
                let mut read = read(order, from, until);
                let mut covered = Vec::new();
                while let Some(slice) = Slice::first_of(&read, &days, days_max) {
                    let inside = days.iter().filter(|(start, end)| *end > slice.from && *start < slice.until).count();
                    assert!(inside <= days_max, "{slice:?}");
                    covered.push((slice.from, slice.until));
                    assert!(covered.len() <= days.len() + 1, "{covered:?}");
                    let Some(rest) = slice.rest else { break };
                    read.after = Some(rest);
                }
                if order == Order::Newest {
                    covered.reverse();
                }
                let ends = (covered[0].0, covered[covered.len() - 1].1);
                assert_eq!(ends, (from, until), "{order:?} {days_max}");
                assert!(covered.windows(2).all(|two| two[0].1 == two[1].0), "{order:?} {days_max}: {covered:?}");
            }
        }
        assert_eq!(Slice::first_of(&read(Order::Oldest, 5, 5), &days, 1), None);
    }

    #[test]
    fn shares_fit_into_one_call() {
        let states: Vec<Part> = RunStateKind::ALL.into_iter().map(Part::State).collect();
        for count in [1, 2, 3, 5, 64] {
            let schedules: Vec<Part> = (0..count).map(|number| Part::Schedule(Incarnation(number))).collect();
            for parts in [&schedules, &states] {
                let shares = shares(parts, EXAMINED_MAX);
                assert!(shares.iter().map(|share| share + 1).sum::<usize>() <= EXAMINED_MAX, "{shares:?}");
                assert!(shares.iter().all(|share| *share >= 14), "{shares:?}");
            }
        }
        assert_eq!(shares(&states, 10), [10; 5]);
    }
}
