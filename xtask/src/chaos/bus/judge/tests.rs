use super::*;

const SENT: Sent = Sent { records: 6, keys: 2 };

/// Returns a call for the record with this index, which takes one nanosecond. All records are in one partition, and the
/// offset of a record is its index.
fn call(index: u32, end: u64) -> Handled {
    let (key, number) = (index % SENT.keys, index / SENT.keys);
    Handled { partition: 0, key, number, offset: u64::from(index), start: end - 1, end }
}

fn state(time: u64, offset: u64, finished: &[(u64, u64)]) -> State {
    State { partition: 0, start: time, end: time, offset, finished: finished.to_vec(), metadata_bytes: 0 }
}

/// Returns the logs of a correct run. The first process handles the records 0 to 3 and commits the records 0 and 2.
/// Then it dies. The second process handles the others.
fn correct() -> [Process; 2] {
    let first = Process {
        handled: vec![call(0, 20), call(1, 30), call(2, 40), call(3, 60)],
        assigned: vec![state(10, 0, &[])],
        committed: vec![state(50, 1, &[(2, 3)])],
        ..Process::default()
    };
    let second = Process {
        handled: vec![call(1, 110), call(3, 120), call(4, 130), call(5, 140)],
        assigned: vec![state(100, 1, &[(2, 3)])],
        committed: vec![state(115, 3, &[]), state(150, 6, &[])],
        ..Process::default()
    };
    [first, second]
}

/// Checks that a change of the correct run breaks these rules.
fn check(change: impl FnOnce(&mut Process, &mut Process), expected: &[Rule]) -> Verdict {
    let mut processes = correct();
    let [first, second] = &mut processes;
    change(first, second);
    let verdict = judge(&processes, SENT);
    assert_eq!(verdict.broken.keys().copied().collect::<Vec<_>>(), expected, "{verdict}");
    verdict
}

#[test]
fn repetition_of_records_after_the_last_commit_is_permitted() {
    let verdict = check(|_, _| {}, &[]);
    assert_eq!((verdict.handled, verdict.duplicates, verdict.late), (6, 2, 0));
    assert_eq!((verdict.assignments, verdict.repeating, verdict.duplicates_max, verdict.commits), (2, 1, 2, 3));
}

#[test]
fn judge_finds_a_record_that_no_call_handled() {
    check(|_, second| _ = second.handled.remove(2), &[Rule::Lost]);
}

#[test]
fn judge_finds_a_call_before_the_end_of_the_call_for_the_record_before() {
    // The second process handles the records 5 and 3 of one key in the wrong order.
    let invert = |first: &mut Process, second: &mut Process| {
        first.handled.pop();
        second.handled[1] = call(3, 145);
    };
    check(invert, &[Rule::Inverted]);
    // The calls overlap.
    check(|_, second| second.handled[2].start = 20, &[Rule::Inverted, Rule::Unknown]);
}

#[test]
fn judge_finds_the_repetition_of_a_committed_record() {
    // The first record is before the committed offset, and the other record is in the metadata.
    check(|_, second| second.handled.push(call(0, 145)), &[Rule::CommittedAgain]);
    check(|_, second| second.handled.push(call(2, 145)), &[Rule::CommittedAgain]);
    check(|_, second| second.handled.push(call(1, 145)), &[Rule::TwiceInAssignment]);
}

#[test]
fn judge_finds_an_assignment_without_the_last_commit() {
    check(|_, second| second.assigned[0].finished.clear(), &[Rule::CommitForgotten]);
    check(|_, second| second.assigned[0].offset = 0, &[Rule::CommitForgotten]);
    check(|first, _| first.committed.push(state(101, 4, &[])), &[Rule::FormerOwnersCommit]);
    let forget = |_: &mut Process, second: &mut Process| {
        second.assigned[0].finished.clear();
        second.assigned[0].metadata_bytes = FULL_BYTES;
    };
    check(forget, &[]);
}

#[test]
fn only_a_pause_explains_a_call_of_a_former_owner() {
    let late = |first: &mut Process| first.handled.push(call(4, 135));
    check(|first, _| late(first), &[Rule::FormerOwner]);
    let pause = |first: &mut Process, _: &mut Process| {
        late(first);
        first.pauses.push((70, 134));
    };
    assert_eq!(check(pause, &[]).late, 1);
    let too_late = |first: &mut Process, _: &mut Process| {
        first.handled.push(call(4, 136 + NOTICE_NANOS));
        first.pauses.push((70, 134));
    };
    check(too_late, &[Rule::FormerOwner]);
}

#[test]
fn judge_finds_records_that_the_bus_stored_twice_or_that_are_unknown() {
    check(
        |_, second| second.handled.push(Handled { offset: 6, ..call(5, 145) }),
        &[Rule::StoredTwice, Rule::Uncommitted],
    );
    check(|_, second| second.handled.push(Handled { key: 2, ..call(5, 145) }), &[Rule::Unknown]);
}

#[test]
fn judge_finds_a_record_that_is_not_committed_at_the_end() {
    check(|_, second| drop(second.committed.pop()), &[Rule::Uncommitted]);
}
