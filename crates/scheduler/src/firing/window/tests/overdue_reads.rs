//! Tests of the reads of overdue rows, for example after a restart.

use super::*;

#[test]
fn overdue_row_from_the_insert_log_does_not_overtake_unread_older_rows() {
    let mut bench = Bench::new(10_000);
    (0..=2_048).for_each(|n| bench.insert(key(n, 100 + i64::try_from(n).unwrap())));
    let (index, read) = bench.plan_reads(60_000).concat()[0];
    let page = bench.rows.page(read);
    assert_eq!(page.keys.len(), PAGE_KEYS);
    bench.insert_and_report(key(9_000, 50_000)); // This row is overdue. It lies after the page.
    bench.insert_and_report(key(9_001, 150)); // A creator writes this row into the range of the page, after the read.
    bench.insert_and_report(key(9_002, 60_500)); // This row becomes due during the read.
    assert!(bench.expire(60_000).is_empty());
    bench.window.read(index, ReadKind::Ahead, read, &page, |_| usize::MAX);
    let expired = bench.expire(60_000);
    assert_eq!(expired.len(), PAGE_KEYS + 1);
    assert!(bench.numbers(&expired).contains(&9_001) && !bench.numbers(&expired).contains(&9_000));
    bench.read_ahead(60_000);
    let expired = bench.expire(61_000);
    assert_eq!(bench.numbers(&expired), [2_048, 9_000, 9_002]);
}

#[test]
fn failed_read_of_overdue_rows_loses_no_row_of_the_insert_log() {
    let mut bench = Bench::new(10_000);
    let (index, _) = bench.plan_reads(5_000).concat()[0];
    bench.insert_and_report(key(1, 300));
    bench.window.read_failed(index, ReadKind::Ahead);
    bench.read_ahead(5_000);
    let expired = bench.expire(5_000);
    assert_eq!(bench.numbers(&expired), [1]);
}

#[test]
fn reads_of_overdue_rows_of_one_tenant_are_one_group() {
    let mut bench = Bench::new(10_000);
    let other_tenant = PollerId { tenant: TenantId(2), ..POLLER };
    for id in [other_tenant, OTHER] {
        bench.window.add_poller(id, shard_term(1), Positions { closed: at(-1), done: at(-1) });
    }
    let pollers = |groups: Vec<Vec<(PollerIndex, DueRead)>>| -> Vec<Vec<PollerId>> {
        groups.into_iter().map(|group| group.into_iter().map(|(_, read)| read.poller).collect()).collect()
    };
    assert_eq!(pollers(bench.plan_reads(5_000)), [vec![POLLER, OTHER], vec![other_tenant]]);
    let mut bench = Bench::new(10_000);
    bench.window.add_poller(OTHER, shard_term(1), Positions { closed: at(-1), done: at(-1) });
    bench.read_ahead(0);
    for (poller, number) in [(POLLER, 1), (OTHER, 2)] {
        assert!(bench.window.add_written_row(&InsertLogEntry { poller, key: key(number, 3_000) }));
    }
    assert_eq!(pollers(bench.plan_reads(1_000)), [[POLLER], [OTHER]], "rows that are not due yet");
}
