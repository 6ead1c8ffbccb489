use proptest::prelude::*;

use super::*;

#[test]
fn snapshot_parser_accepts_only_the_text_format_of_postgresql() {
    let snapshot = |end, open: &[u64]| Some(Snapshot { end, open: open.iter().copied().collect() });
    assert_eq!(Snapshot::parse("10:20:10,14,15"), snapshot(20, &[10, 14, 15]));
    assert_eq!(Snapshot::parse("10:10:"), snapshot(10, &[]));
    for text in ["", "10", "10:20", "10:x:", "10:20:1,x"] {
        assert_eq!(Snapshot::parse(text), None, "{text}");
    }
}

/// Step of the test: a transaction begins, a chosen open transaction ends, or a reader reads a few rows.
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

/// Model of a server: the numbers of its open and ended transactions. Each ended transaction has written one row.
#[derive(Default)]
struct Server {
    next: u64,
    open: BTreeSet<u64>,
    over: BTreeSet<u64>,
}

impl Server {
    fn snapshot(&self) -> Snapshot {
        // As in PostgreSQL, `end` is directly after the last ended transaction, and `open` omits later transactions.
        let end = self.over.last().map_or(0, |last| last + 1);
        Snapshot { end, open: self.open.range(..end).copied().collect() }
    }

    /// Returns the transactions whose rows the statement `READ` would return.
    fn read(&self, received: &Snapshot, limit: usize) -> Vec<u64> {
        let is_new = |number: &&u64| **number >= received.end || received.open.contains(number);
        self.over.iter().filter(is_new).take(limit).copied().collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn insert_log_returns_each_row_once_despite_out_of_order_commits(steps in steps()) {
        let mut server = Server::default();
        let mut received = server.snapshot();
        let mut all = Vec::new();
        let read = |server: &Server, received: &mut Snapshot, all: &mut Vec<u64>, limit: usize| {
            let seen = server.snapshot();
            let rows = server.read(received, limit);
            let is_full = rows.len() == limit;
            *received = if is_full { received.up_to(&seen, rows[limit - 1] + 1) } else { seen };
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
                    read(&server, &mut received, &mut all, limit);
                }
            }
        }
        while read(&server, &mut received, &mut all, 3) {}
        let once: BTreeSet<u64> = all.iter().copied().collect();
        prop_assert_eq!(once.len(), all.len(), "a row was returned twice: {:?}", all);
        prop_assert_eq!(once, server.over);
    }
}
