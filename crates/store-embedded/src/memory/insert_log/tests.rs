use domain::{DueKey, Incarnation, Occurrence, PollerId, Revision, TargetKey, TenantId, Timestamp};

use super::*;

fn arrival(number: u16) -> InsertLogEntry {
    let poller = PollerId { tenant: TenantId(1), generation: 0, number: number % 2 };
    let incarnation = Incarnation(u128::from(number));
    let occurrence = Occurrence { incarnation, nominal: Timestamp::MIN, revision: Revision(0), replay: 0 };
    InsertLogEntry { poller, key: DueKey { position: Timestamp::MIN, occurrence, attempt: 1, target: TargetKey(0) } }
}

fn shard(number: u16) -> ShardId {
    arrival(number).poller.shard()
}

#[test]
fn insert_log_returns_each_row_of_the_requested_shards_once() {
    assert_ne!(shard(0), shard(1), "the test needs two shards");
    let mut log = InsertLog::new(100);
    (0..6).for_each(|number| log.append(arrival(number)));
    let (found, cursor) = log.read(&[shard(0)], Cursor::default(), 2);
    assert_eq!(found, [arrival(0), arrival(2)]);
    let (found, cursor) = log.read(&[shard(0)], cursor, 2);
    assert_eq!(found, [arrival(4)]);
    assert_eq!(log.read(&[shard(0)], cursor, 2).0, []);
    let (found, _) = log.read(&[shard(1)], Cursor::default(), 9);
    assert_eq!(found, [arrival(1), arrival(3), arrival(5)]);
}

#[test]
fn insert_log_drops_row_after_a_reader_presents_a_later_cursor() {
    let mut log = InsertLog::new(100);
    (0..6).for_each(|number| log.append(arrival(number)));
    let (_, cursor) = log.read(&[shard(0)], Cursor::default(), 9);
    log.read(&[shard(0)], cursor, 9);
    assert_eq!(log.rows.len(), 5, "only the first row is dropped: the second belongs to another shard");
    log.read(&[shard(1)], cursor, 9);
    assert!(log.rows.is_empty());
    log.append(arrival(6));
    assert_eq!(log.read(&[shard(0)], cursor, 9).0, [arrival(6)]);
}

#[test]
fn insert_log_capacity_counts_only_rows_of_shards_with_an_owner() {
    let mut log = InsertLog::new(3);
    (0..6).for_each(|number| log.append(arrival(number)));
    assert!(!log.is_full(), "no owner has taken these shards");
    let mut log = InsertLog::new(3);
    log.take(shard(0));
    log.take(shard(1));
    (0..6).for_each(|number| log.append(arrival(number)));
    assert!(log.is_full());
    let both = [shard(0), shard(1)];
    let (found, cursor) = log.read(&both, Cursor::default(), 9);
    assert_eq!(found.len(), 6);
    log.read(&both, cursor, 9);
    assert!(!log.is_full());
}
