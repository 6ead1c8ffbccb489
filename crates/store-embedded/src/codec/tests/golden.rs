use std::time::Duration;

use domain::{Facet, Hour, RunOrigin, RunOutline, RunStateKind, TenantId, Term, Timestamp};
use store::{Change, OwnerWrite};

use super::{a_run, a_schedule, an_occurrence, check_stored, one_entry};
use crate::IndexKind;
use crate::checkpoint::{Checkpoint, RunIndex};
use crate::codec::entry::{ForgetItem, Kind};
use crate::codec::timed::{self, Class, Progress};
use crate::codec::{counted, key};

/// This golden file contains the forms that version 4 added for listings of runs by time.
#[test]
fn encoded_bytes_of_run_listings_match_golden_file_of_version_4() {
    let checkpoint = |run_index| Checkpoint {
        index: IndexKind::Lsm,
        epoch: 1_800_000_000,
        journal_id: Some(3),
        base: 4,
        synced: 5,
        is_listed: true,
        run_index,
        counted_from: None,
    };
    let (occurrence, lateness) = (an_occurrence(), Some(Duration::from_millis(1_500)));
    let outline = RunOutline { state: RunStateKind::Failed, lateness, statuses: vec![503, 500] };
    let lines = [
        ("checkpoint while the runs are indexed", crate::file::envelope(&checkpoint(RunIndex::Building).encode())),
        ("checkpoint", crate::file::envelope(&checkpoint(RunIndex::Complete).encode())),
        ("key listed run", Class::of_first(&outline).key(TenantId(7), &occurrence).to_vec()),
        ("listed run", timed::encode(&outline)),
        (
            "listed run without a lateness",
            timed::encode(&RunOutline { lateness: None, statuses: Vec::new(), ..outline }),
        ),
        ("progress", Progress::UpTo(key::run(&occurrence).to_vec()).encode()),
        ("progress at the end", Progress::Complete.encode()),
        ("entry index runs", one_entry(Kind::IndexRuns, |builder| builder.index_runs(500))),
    ];
    check_stored("stored-v4.txt", &lines);
}

/// This golden file contains the forms that version 5 added for counts of runs.
#[test]
fn encoded_bytes_of_counts_match_golden_file_of_version_5() {
    let checkpoint = Checkpoint {
        index: IndexKind::Lsm,
        epoch: 1_800_000_000,
        journal_id: Some(3),
        base: 4,
        synced: 5,
        is_listed: true,
        run_index: RunIndex::Complete,
        counted_from: Some(Timestamp::from_millis(9)),
    };
    let origin = RunOrigin { host: Some("a.example".to_owned()), labels: vec![("team".to_owned(), "blue".to_owned())] };
    let change = Change::Run { run: a_run(), then: None, ends: true, origin: Some(origin) };
    let write = OwnerWrite { term: Term(77), poller: a_schedule().poller, change };
    let forget = ForgetItem::Counts { tenant: TenantId(7), before: Hour(500_000) };
    let lines = [
        ("checkpoint", crate::file::envelope(&checkpoint.encode())),
        ("entry write", one_entry(Kind::Write, |builder| builder.write(&write))),
        ("entry forget", one_entry(Kind::Forget, |builder| builder.forget(&forget))),
        ("key counts", counted::key(TenantId(7), Facet::Label, Hour(500_000)).to_vec()),
    ];
    assert_eq!(Checkpoint::decode(&checkpoint.encode()), Ok(checkpoint));
    check_stored("stored-v5.txt", &lines);
}
