use proptest::prelude::*;

use super::*;

#[test]
fn a_snapshot_is_read_as_postgresql_writes_it() {
    let snapshot = |end, open: &[u64]| Some(Snapshot { end, open: open.iter().copied().collect() });
    assert_eq!(Snapshot::parse("10:20:10,14,15"), snapshot(20, &[10, 14, 15]));
    assert_eq!(Snapshot::parse("10:10:"), snapshot(10, &[]));
    for text in ["", "10", "10:20", "10:x:", "10:20:1,x"] {
        assert_eq!(Snapshot::parse(text), None, "{text}");
    }
}

/// Transactions begin, and end in any order; a reader reads a few rows now and then.
#[derive(Clone, Debug)]
enum Step {
    Begin,
    End(u8),
    Read { limit: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Begin),
        4 => any::<u8>().prop_map(Step::End),
        2 => (1..5_usize).prop_map(|limit| Step::Read { limit }),
    ];
    prop::collection::vec(step, 1..80)
}

/// A server: the numbers of transactions that are open, and of those that are over, each of which wrote one row.
#[derive(Default)]
struct Server {
    next: u64,
    open: BTreeSet<u64>,
    over: BTreeSet<u64>,
}

impl Server {
    fn snapshot(&self) -> Snapshot {
        // As PostgreSQL does, the end is after the last that is over, and open ones after that are not listed.
        let end = self.over.last().map_or(0, |last| last + 1);
        Snapshot { end, open: self.open.range(..end).copied().collect() }
    }

    /// As the statement does it.
    fn read(&self, told: &Snapshot, limit: usize) -> Vec<u64> {
        let is_new = |number: &&u64| **number >= told.end || told.open.contains(number);
        self.over.iter().filter(is_new).take(limit).copied().collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_row_is_told_once_in_whatever_order_transactions_end(steps in steps()) {
        let mut server = Server::default();
        let mut told = server.snapshot();
        let mut all = Vec::new();
        let read = |server: &Server, told: &mut Snapshot, all: &mut Vec<u64>, limit: usize| {
            let seen = server.snapshot();
            let rows = server.read(told, limit);
            let is_full = rows.len() == limit;
            *told = if is_full { told.up_to(&seen, rows[limit - 1] + 1) } else { seen };
            all.extend(rows);
            is_full
        };
        for step in steps {
            match step {
                Step::Begin => {
                    server.open.insert(server.next);
                    server.next += 1;
                }
                Step::End(choice) => {
                    let count = server.open.len().max(1);
                    if let Some(number) = server.open.iter().nth(usize::from(choice) % count).copied() {
                        server.open.remove(&number);
                        server.over.insert(number);
                    }
                }
                Step::Read { limit } => {
                    read(&server, &mut told, &mut all, limit);
                }
            }
        }
        while read(&server, &mut told, &mut all, 3) {}
        let once: BTreeSet<u64> = all.iter().copied().collect();
        prop_assert_eq!(once.len(), all.len(), "told twice: {:?}", all);
        prop_assert_eq!(once, server.over);
    }
}
