use super::*;
use crate::TopicName;

const BOUND: usize = 4;

fn partition() -> Partition {
    Partition { topic: TopicName::new("orders").unwrap(), index: 0 }
}

/// Returns lanes with an assigned partition.
fn lanes() -> Lanes {
    let mut lanes = Lanes::new(Bounds { records: BOUND, bytes: 1 << 20, uncommitted: BOUND, metadata_bytes: 4_096 }, 0);
    lanes.assign(&Assigned { partition: partition(), position: Offset(0), committed: None }, false);
    lanes
}

/// Adds the next record, and finishes it.
fn finish_next(lanes: &mut Lanes, offset: u64) {
    let timestamp = Timestamp::from_millis(0);
    let record = Record { offset: Offset(offset), timestamp, key: None, value: None, headers: Vec::new() };
    let batch = RecordBatch { partition: partition(), end: record.offset.next(), records: vec![record] };
    assert_eq!(lanes.push(batch, |_| None), None);
    let mut work = lanes.take(1).remove(0);
    lanes.finish(&mut work, Outcome { finished: 1, retry_at: None });
}

#[test]
fn partition_is_paused_while_too_many_finished_records_are_not_committed() {
    let mut lanes = lanes();
    finish_next(&mut lanes, 0);
    assert!(!lanes.needs_commit());
    finish_next(&mut lanes, 1);
    assert!(lanes.needs_commit(), "half of the bound is reached");
    let commits = lanes.commits();
    assert!(!lanes.needs_commit(), "a commit is running");
    finish_next(&mut lanes, 2);
    assert_eq!(lanes.flow(), (vec![], vec![]));
    finish_next(&mut lanes, 3);
    assert_eq!(lanes.flow(), (vec![partition()], vec![]));

    lanes.end_commit(&commits, false);
    assert!(!lanes.needs_commit(), "a failed commit is repeated at once");
    assert_eq!(lanes.flow(), (vec![], vec![]), "a failed commit describes nothing");
    let commits = lanes.commits();
    assert_eq!(commits[0].committed.offset, Offset(4));
    lanes.end_commit(&commits, true);
    assert!(!lanes.needs_commit());
    assert_eq!(lanes.flow(), (vec![], vec![partition()]));
}

#[test]
fn commit_of_an_earlier_assignment_does_not_count_for_a_later_one() {
    let mut lanes = lanes();
    (0..2).for_each(|offset| finish_next(&mut lanes, offset));
    let commits = lanes.commits();
    lanes.give_up(lanes.ids()[0]);
    lanes.assign(&Assigned { partition: partition(), position: Offset(0), committed: None }, false);
    (0..2).for_each(|offset| finish_next(&mut lanes, offset));
    lanes.end_commit(&commits, true);
    assert!(lanes.needs_commit(), "the records of the later assignment are not committed");
}
