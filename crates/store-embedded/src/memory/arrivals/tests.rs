use domain::{DueKey, Incarnation, Occurrence, PollerId, Revision, TargetKey, TenantId, Timestamp};

use super::*;

fn arrival(number: u16) -> Arrival {
    let poller = PollerId { tenant: TenantId(1), generation: 0, number: number % 2 };
    let incarnation = Incarnation(u128::from(number));
    let occurrence = Occurrence { incarnation, nominal: Timestamp::MIN, revision: Revision(0), replay: 0 };
    Arrival { poller, key: DueKey { position: Timestamp::MIN, occurrence, attempt: 1, target: TargetKey(0) } }
}

fn shard(number: u16) -> ShardId {
    arrival(number).poller.shard()
}

#[test]
fn each_reader_is_told_its_shards_rows_once_and_in_order() {
    assert_ne!(shard(0), shard(1), "the test needs two shards");
    let mut arrivals = Arrivals::new(100);
    (0..6).for_each(|number| arrivals.append(arrival(number)));
    let (told, cursor) = arrivals.read(&[shard(0)], Cursor::default(), 2);
    assert_eq!(told, [arrival(0), arrival(2)]);
    let (told, cursor) = arrivals.read(&[shard(0)], cursor, 2);
    assert_eq!(told, [arrival(4)]);
    assert_eq!(arrivals.read(&[shard(0)], cursor, 2).0, []);
    let (told, _) = arrivals.read(&[shard(1)], Cursor::default(), 9);
    assert_eq!(told, [arrival(1), arrival(3), arrival(5)]);
}

#[test]
fn what_every_owner_has_passed_is_forgotten_and_nothing_else() {
    let mut arrivals = Arrivals::new(100);
    (0..6).for_each(|number| arrivals.append(arrival(number)));
    let (_, cursor) = arrivals.read(&[shard(0)], Cursor::default(), 9);
    arrivals.read(&[shard(0)], cursor, 9);
    assert_eq!(arrivals.rows.len(), 5, "the first row only: the second is another shard's");
    arrivals.read(&[shard(1)], cursor, 9);
    assert!(arrivals.rows.is_empty());
    arrivals.append(arrival(6));
    assert_eq!(arrivals.read(&[shard(0)], cursor, 9).0, [arrival(6)]);
}

#[test]
fn rows_of_a_taken_shard_are_never_dropped_and_fill_it_instead() {
    let mut arrivals = Arrivals::new(3);
    (0..6).for_each(|number| arrivals.append(arrival(number)));
    assert!(!arrivals.is_full(), "nobody has taken these shards");
    let mut arrivals = Arrivals::new(3);
    arrivals.take(shard(0));
    arrivals.take(shard(1));
    (0..6).for_each(|number| arrivals.append(arrival(number)));
    assert!(arrivals.is_full());
    let both = [shard(0), shard(1)];
    let (told, cursor) = arrivals.read(&both, Cursor::default(), 9);
    assert_eq!(told.len(), 6);
    arrivals.read(&both, cursor, 9);
    assert!(!arrivals.is_full());
}
