//! Tests that damage due rows on the disk. The store serves the other rows of the poller, and derives the damaged rows
//! from the schedules and their runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{Attempt, AttemptResult, DueKey, Occurrence, RunState, Term, Timestamp};
use prometheus_client::registry::Registry;
use runtime::Runtime;
use store::{Change, DueBound, DueRead, Insert, OwnerWrite, Positions, Store as _, Written};
use store_embedded::IndexKind;

use crate::support::{Home, POLLER, on_real, one_shot, small};

const SCHEDULES: u64 = 2_000;

/// Instant in the recent past, so that the attempts have ended and the store keeps their runs.
static START: LazyLock<Timestamp> = LazyLock::new(|| Runtime::real().now() - Duration::from_secs(24 * 3_600));

fn at(millis: u64) -> Timestamp {
    *START + Duration::from_millis(millis)
}

fn an_insert(number: u64) -> Insert {
    one_shot(number, at(number * 1_000), None, format!("payload {number} {}", "x".repeat(400)).as_bytes())
}

fn run(insert: &Insert, state: RunState) -> Run {
    let nominal = insert.due.position;
    let result = AttemptResult::Answered(500);
    let duration = Duration::from_millis(5);
    let attempt = Attempt { number: 1, started_at: nominal, duration, result, delay: None, excerpt: None };
    Run { tenant: insert.schedule.tenant, occurrence: insert.due.occurrence, state, attempts: vec![attempt] }
}

/// Writes a store whose schedules are new, have a pending retry, or have a redriven run. Returns the attempts that the
/// due rows must request.
async fn fill(runtime: &Runtime, dir: &Path) -> BTreeMap<Occurrence, u16> {
    let home = Home::open(runtime, dir, small(IndexKind::Lsm)).await;
    let term = home.store.take(vec![POLLER.shard()]).await.unwrap()[0];
    let inserts: Vec<Insert> = (0..SCHEDULES).map(an_insert).collect();
    home.store.insert(inserts.clone()).await.unwrap();
    let (mut changes, mut expected) = (Vec::new(), BTreeMap::new());
    for (number, insert) in inserts.iter().enumerate() {
        let of = insert.due.occurrence;
        let later = |millis| insert.due.position + Duration::from_millis(millis);
        match number % 3 {
            0 => {
                expected.insert(of, 1);
            }
            1 => {
                let retry = DueKey { position: later(500), attempt: 2, ..insert.due };
                changes.push(Change::Run {
                    run: run(insert, RunState::Retrying),
                    then: Some(retry),
                    ends: false,
                    origin: None,
                });
                expected.insert(of, 2);
            }
            _ => {
                let again = Occurrence { replay: 1, ..of };
                let due = DueKey { position: later(700), occurrence: again, ..insert.due };
                changes.push(Change::Run { run: run(insert, RunState::Failed), then: None, ends: true, origin: None });
                changes.push(Change::Redrive { of, due });
                expected.insert(again, 1);
            }
        }
    }
    let writes = changes.into_iter().map(|change| OwnerWrite { term, poller: POLLER, change }).collect();
    for written in home.store.write(writes).await.unwrap() {
        assert_eq!(written.unwrap(), Written::Done);
    }
    home.close().await;
    expected
}

fn table(dir: &Path, family: &str) -> PathBuf {
    std::fs::read_dir(dir.join("index").join(family).join("tables")).unwrap().next().unwrap().unwrap().path()
}

fn flip(table: &Path, place: usize) {
    let mut bytes = std::fs::read(table).unwrap();
    bytes[place] ^= 4;
    std::fs::write(table, bytes).unwrap();
}

/// Returns all due rows of the poller.
async fn due_rows(home: &Home) -> Vec<DueKey> {
    let (mut after, mut rows) = (DueBound::Instant(Timestamp::MIN), Vec::new());
    loop {
        let read = DueRead { poller: POLLER, after, until: Timestamp::MAX, limit: 500 };
        let page = home.store.due(vec![read]).await.unwrap().remove(0);
        rows.extend_from_slice(&page.keys);
        match (page.next, page.keys.last()) {
            (Some(_), Some(last)) => after = DueBound::Key(*last),
            _ => return rows,
        }
    }
}

fn is_complete(rows: &[DueKey], expected: &BTreeMap<Occurrence, u16>) -> bool {
    let requested: BTreeMap<Occurrence, u16> = rows.iter().map(|row| (row.occurrence, row.attempt)).collect();
    expected.iter().all(|(of, attempt)| requested.get(of) >= Some(attempt))
}

/// Waits until the store has replaced the damaged table.
async fn repaired(runtime: &Runtime, home: &Home, damages: usize) {
    let repaired = async {
        while home.store.verify().await.unwrap().damages.len() > damages {
            runtime.sleep(Duration::from_millis(5)).await;
        }
    };
    runtime.timeout(Duration::from_secs(60), repaired).await.expect("the store repairs the damage");
}

fn metric(home: &Home, name: &str) -> u64 {
    let (mut registry, mut text) = (Registry::default(), String::new());
    home.store.register(&mut registry);
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn store_serves_other_due_rows_and_rebuilds_damaged_due_rows() {
    on_real(async |runtime| {
        let original = tempfile::tempdir().unwrap();
        let expected = fill(&runtime, original.path()).await;
        let length = std::fs::metadata(table(original.path(), "due")).unwrap().len();
        let length = usize::try_from(length).unwrap();
        // The first places are in blocks of rows. The last places are in the index of the table and in other parts.
        for place in [10, length / 4, length / 2, length * 3 / 4, length - 1_500, length - 900] {
            let dir = tempfile::tempdir().unwrap();
            copy(original.path(), dir.path());
            flip(&table(dir.path(), "due"), place);
            let Ok(home) = Home::try_open(&runtime, dir.path(), small(IndexKind::Lsm)).await else {
                assert!(place > length / 2, "a damaged block of rows does not prevent the start");
                continue;
            };
            let new = an_insert(SCHEDULES);
            home.store.insert(vec![new.clone()]).await.unwrap();
            let rows = due_rows(&home).await;
            assert!(rows.contains(&new.due), "the poller's new row is served, place {place}");
            // Without its index, no row of the table is readable.
            assert!(rows.len() > 1_000 || place > length * 3 / 4, "{} rows are served, place {place}", rows.len());
            repaired(&runtime, &home, 0).await;
            let rows = due_rows(&home).await;
            assert!(is_complete(&rows, &expected), "place {place}");
            assert!(rows.iter().all(|row| row.position >= row.occurrence.nominal), "no row is too early");
            assert_eq!(metric(&home, "reveille_store_unreadable_ranges_total"), 1);
            assert_eq!(metric(&home, "reveille_store_unrepaired_ranges"), 0);
            assert_eq!(metric(&home, "reveille_store_unreadable_schedules_total"), 0);
            assert!(metric(&home, "reveille_store_rebuilt_due_rows_total") > 10);
            home.close().await;
            let home = Home::open(&runtime, dir.path(), small(IndexKind::Lsm)).await;
            assert!(is_complete(&due_rows(&home).await, &expected), "the rows exist after a restart, place {place}");
            home.close().await;
        }
    });
}

#[test]
fn rebuilt_due_rows_are_after_the_closed_timestamp() {
    on_real(async |runtime| {
        let dir = tempfile::tempdir().unwrap();
        let expected = fill(&runtime, dir.path()).await;
        let due = table(dir.path(), "due");
        flip(&due, usize::try_from(std::fs::metadata(&due).unwrap().len()).unwrap() / 2);
        let home = Home::open(&runtime, dir.path(), small(IndexKind::Lsm)).await;
        let term = home.store.take(vec![POLLER.shard()]).await.unwrap()[0];
        let closed = at(SCHEDULES * 1_000);
        write_positions(&home, term, Positions { closed, done: Timestamp::MIN }).await;
        let before: Vec<DueKey> = due_rows(&home).await;
        repaired(&runtime, &home, 0).await;
        let after = due_rows(&home).await;
        assert!(is_complete(&after, &expected));
        let rebuilt: Vec<&DueKey> = after.iter().filter(|row| row.position > closed).collect();
        assert!(rebuilt.len() > 10);
        assert!(
            rebuilt.iter().all(|row| !before
                .iter()
                .any(|known| known.occurrence == row.occurrence && known.attempt >= row.attempt)),
            "the store writes only rows that it cannot read"
        );
        let (arrived, _) =
            home.store.insert_log([POLLER.shard()].into(), store::Cursor::default(), 10_000).await.unwrap();
        assert_eq!(arrived.len(), rebuilt.len(), "the owner receives the rows through the insert log");
        home.close().await;
    });
}

async fn write_positions(home: &Home, term: Term, to: Positions) {
    let write = OwnerWrite { term, poller: POLLER, change: Change::Positions(to) };
    home.store.write(vec![write]).await.unwrap().remove(0).unwrap();
}

#[test]
fn store_counts_schedules_that_it_cannot_read_for_the_repair() {
    on_real(async |runtime| {
        let dir = tempfile::tempdir().unwrap();
        fill(&runtime, dir.path()).await;
        for family in ["due", "rows"] {
            let table = table(dir.path(), family);
            flip(&table, usize::try_from(std::fs::metadata(&table).unwrap().len()).unwrap() / 2);
        }
        let home = Home::open(&runtime, dir.path(), small(IndexKind::Lsm)).await;
        due_rows(&home).await;
        // The table of schedules stays damaged: its checksum and a scan of its rows report that.
        repaired(&runtime, &home, 2).await;
        assert_eq!(metric(&home, "reveille_store_unrepaired_ranges"), 0);
        let unreadable = metric(&home, "reveille_store_unreadable_schedules_total");
        assert!((1..100).contains(&unreadable), "{unreadable} schedules");
        home.close().await;
    });
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = (entry.as_ref().unwrap().path(), entry.unwrap().file_name());
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else {
            std::fs::copy(&path, to.join(name)).unwrap();
        }
    }
}
