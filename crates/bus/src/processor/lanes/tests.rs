use futures_util::future::BoxFuture;

use super::*;
use crate::TopicName;
use crate::processor::{Delivery, Handler, HandlerError};

const BOUND: usize = 4;

fn partition() -> Partition {
    Partition { topic: TopicName::new("orders").unwrap(), index: 0 }
}

/// Returns lanes with an assigned partition.
fn lanes() -> Lanes {
    let mut lanes = Lanes::new(Bounds { records: BOUND, bytes: 1 << 20, uncommitted: BOUND, metadata_bytes: 4_096 }, 0);
    lanes.assign(&Assigned { partition: partition(), position: Offset(0), committed: None }, false, None);
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
    lanes.assign(&Assigned { partition: partition(), position: Offset(0), committed: None }, false, None);
    (0..2).for_each(|offset| finish_next(&mut lanes, offset));
    lanes.end_commit(&commits, true);
    assert!(lanes.needs_commit(), "the records of the later assignment are not committed");
}

/// Handler that needs the record with the offset 3 after it has received it.
#[derive(Default, Debug)]
struct NeedsThree(std::sync::Mutex<Vec<u64>>);

impl Handler for NeedsThree {
    fn handle(&self, _: Delivery) -> BoxFuture<'_, Result<(), HandlerError>> {
        unreachable!("the test runs no handler")
    }
}

impl StatefulHandler for NeedsThree {
    fn replay(&self, record: &Record) {
        self.0.lock().unwrap().push(record.offset.0);
    }

    fn oldest(&self) -> Option<Offset> {
        self.0.lock().unwrap().contains(&3).then_some(Offset(3))
    }
}

#[test]
fn commit_keeps_the_records_that_are_not_replayed() {
    let mut lanes = Lanes::new(Bounds { records: 9, bytes: 1 << 20, uncommitted: 9, metadata_bytes: 4_096 }, 0);
    let (mut progress, _) = Progress::new(&Assigned { partition: partition(), position: Offset(0), committed: None });
    progress.finish(Offset(0), Offset(1));
    progress.finish(Offset(2), Offset(5));
    let committed = progress.commit(Some(Offset(0)), 4_096).0;
    assert_eq!(committed.offset, Offset(0));
    let handler = Arc::new(NeedsThree::default());
    let assigned = Assigned { partition: partition(), position: Offset(0), committed: Some(committed.clone()) };
    lanes.assign(&assigned, false, Some(handler.clone()));

    let record = |offset| Record {
        offset: Offset(offset),
        timestamp: Timestamp::from_millis(0),
        key: None,
        value: None,
        headers: Vec::new(),
    };
    let batch = |from: u64, to: u64| RecordBatch {
        partition: partition(),
        records: (from..to).map(record).collect(),
        end: Offset(6),
    };
    assert_eq!(lanes.push(batch(0, 2), |_| None), None);
    assert_eq!(*handler.0.lock().unwrap(), [0]);
    let mut work = lanes.take(1).remove(0);
    assert_eq!(work.records[0].offset, Offset(1));
    lanes.finish(&mut work, Outcome { finished: 1, retry_at: None });
    // All records before the offset 5 are finished, but the handler has not received the records from 2 on.
    assert_eq!(lanes.commits()[0].committed.offset, Offset(2));

    assert_eq!(lanes.push(batch(2, 6), |_| None), None);
    assert_eq!(*handler.0.lock().unwrap(), [0, 2, 3, 4]);
    lanes.mark_changed(&partition());
    let committed = lanes.commits().remove(0).committed;
    assert_eq!(committed.offset, Offset(3));
    let assigned = Assigned { partition: partition(), position: Offset(3), committed: Some(committed) };
    assert_eq!(Progress::new(&assigned).0.first_unfinished(Offset(0)), Offset(5));
}
