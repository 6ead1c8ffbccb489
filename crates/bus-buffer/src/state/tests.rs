use bus::{Offset, Partition, TopicName};

use super::*;

const START: Monotonic = Monotonic::from_start(Duration::ZERO);

fn record() -> NewRecord {
    NewRecord::new(&TopicName::new("orders").unwrap(), "key", "value")
}

fn position() -> Position {
    let partition = Partition { topic: TopicName::new("orders").unwrap(), index: 0 };
    Position { partition, offset: Offset(7) }
}

/// Hands over records on the direct way. Returns their numbers and the receivers of their first outcomes.
fn hand_over(state: &mut State, count: usize) -> Vec<(u64, Durable)> {
    let hand_over = |_| {
        let (promise, durable, _) = Promise::new();
        (state.hand_over_new(START, record(), promise), durable)
    };
    (0..count).map(hand_over).collect()
}

#[test]
fn acknowledged_record_is_accepted_after_the_earlier_ones() {
    let mut state = State::new(START);
    let mut records = hand_over(&mut state, 3);
    state.end(START, 1, Ok(position()));
    assert!(records[1].1.try_recv().is_err(), "a crash could repeat record 0 after record 1");
    state.end(START, 0, Ok(position()));
    assert_eq!(records[0].1.try_recv(), Ok(Ok(())));
    assert_eq!(records[1].1.try_recv(), Ok(Ok(())));
    assert_eq!(state.backlog().records, 1);
}

#[test]
fn acknowledged_record_goes_to_the_disk_after_the_earlier_ones() {
    let mut state = State::new(START);
    let mut records = hand_over(&mut state, 2);
    state.end(START, 1, Ok(position()));
    let entries = state.begin_buffering();
    assert_eq!(entries.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1]);
    state.end(START, 0, Ok(position()));
    assert!(records[0].1.try_recv().is_err(), "the entry is not durable");
    for (index, (number, entry)) in entries.into_iter().enumerate() {
        state.commit(index as u64, entry.len() as u64, number);
    }
    assert_eq!(records[0].1.try_recv(), Ok(Ok(())));
    assert_eq!(records[1].1.try_recv(), Ok(Ok(())));
    assert_eq!(state.backlog().records, 0);
    state.store_finished(2);
    // The next record is on the direct way.
    assert!(state.end_buffering());
    let mut next = hand_over(&mut state, 1);
    state.end(START, 2, Ok(position()));
    assert_eq!(next[0].1.try_recv(), Ok(Ok(())));
}

#[test]
fn record_of_the_direct_way_is_accepted_after_the_journal_names_the_finished_records() {
    let mut state = State::new(START);
    hand_over(&mut state, 1);
    let (_, entry) = state.begin_buffering().remove(0);
    state.commit(0, entry.len() as u64, 0);
    assert!(state.end_buffering(), "the bus has received all records");
    let mut next = hand_over(&mut state, 1);
    state.end(START, 1, Ok(position()));
    state.end(START, 0, Ok(position()));
    assert!(next[0].1.try_recv().is_err(), "a restart would send record 0 after record 1");
    assert_eq!(state.new_finished(), Some(1));
    state.store_finished(1);
    assert_eq!(next[0].1.try_recv(), Ok(Ok(())));
}

#[test]
fn record_that_fails_on_the_direct_way_does_not_hold_up_the_others() {
    let mut state = State::new(START);
    let mut records = hand_over(&mut state, 2);
    state.end(START, 1, Ok(position()));
    let unknown = BusError::UnknownTopic(TopicName::new("orders").unwrap());
    state.end(START, 0, Err(unknown.clone()));
    assert_eq!(records[0].1.try_recv(), Ok(Err(unknown.into())));
    assert_eq!(records[1].1.try_recv(), Ok(Ok(())));
}

#[test]
fn record_that_the_full_disk_rejects_leaves_nothing_behind() {
    let mut state = State::new(START);
    let mut records = hand_over(&mut state, 2);
    for (number, entry) in state.begin_buffering() {
        state.reject(number, entry.len() as u64, BufferError::Full);
    }
    assert_eq!(records[0].1.try_recv(), Ok(Err(BufferError::Full)));
    state.end(START, 0, Ok(position()));
    state.end(START, 1, Ok(position()));
    assert!(state.end_buffering());
    assert_eq!((state.backlog().records, state.backlog().bytes), (0, 0));
}

#[test]
fn later_number_of_finished_records_counts_in_any_order() {
    let mut state = State::new(START);
    for number in 0..12 {
        state.recover(number, 100, &Entry::Record(number, record()));
    }
    state.recover(12, 9, &Entry::Finished(10));
    state.recover(13, 9, &Entry::Finished(5));
    assert_eq!(state.backlog().records, 2);
}
