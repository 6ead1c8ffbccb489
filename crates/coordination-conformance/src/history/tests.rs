//! Histories that can be, and some that cannot.

use super::*;
use coordination::tree::Expected::{Any, Version};

const KEY: &str = "/a";

/// Calls of sessions 1, 2, 3 one after the other, unless one is asked and answered apart.
#[derive(Default)]
struct Story(History);

fn seen(Value(value): Value, version: i32, created: i64, modified: i64) -> Answer {
    Answer::Node(Seen { value: Some(Value(value)), version, created: Zxid(created), modified: Zxid(modified) })
}

impl Story {
    fn on(&mut self, session: usize, key: &str, call: Call, answer: impl FnOnce(Value) -> Answer) -> Value {
        let at = self.0.ask(session, key, call);
        self.0.answer(at, answer(at));
        at
    }

    fn unanswered(&mut self, session: usize, call: Call) -> Value {
        self.0.ask(session, KEY, call)
    }

    fn refused(&mut self, session: usize, call: Call, answer: Answer) -> Value {
        self.on(session, KEY, call, |_| answer)
    }

    fn create(&mut self, session: usize, zxid: i64) -> Value {
        self.on(session, KEY, Call::Create, |at| seen(at, 0, zxid, zxid))
    }

    /// To this version.
    fn set(&mut self, session: usize, expected: Expected, version: i32, created: i64, modified: i64) -> Value {
        self.on(session, KEY, Call::Set(expected), |at| seen(at, version, created, modified))
    }

    fn delete(&mut self, session: usize) {
        self.on(session, KEY, Call::Delete(Any), |_| Answer::Deleted);
    }

    fn synced(&mut self, session: usize, answer: Answer) {
        self.on(session, KEY, Call::SyncedRead, |_| answer);
    }

    fn read(&mut self, session: usize, answer: Answer) {
        self.on(session, KEY, Call::Read, |_| answer);
    }

    #[track_caller]
    fn can_be(self) {
        self.0.check().unwrap();
    }

    #[track_caller]
    fn cannot_be(self, why: &str) {
        let told = self.0.check().expect_err("it cannot be");
        assert!(told.contains(why), "{told}");
    }
}

const NO_ORDER: &str = "no order explains the answers of /a";
const WENT_BACK: &str = "a session's view went back";

#[test]
fn calls_one_after_the_other_are_answered_as_by_one_node() {
    let mut story = Story::default();
    story.synced(1, Answer::NoNode);
    story.refused(1, Call::Set(Any), Answer::NoNode);
    story.create(1, 5);
    story.refused(2, Call::Create, Answer::NodeExists);
    let set = story.set(2, Version(0), 1, 5, 6);
    story.refused(1, Call::Set(Version(0)), Answer::BadVersion);
    story.refused(1, Call::Delete(Version(2)), Answer::BadVersion);
    story.synced(1, seen(set, 1, 5, 6));
    story.delete(1);
    story.synced(2, Answer::NoNode);
    let again = story.create(2, 9);
    story.synced(1, seen(again, 0, 9, 9));
    story.can_be();
}

#[test]
fn of_calls_at_once_either_may_be_first() {
    for is_early in [true, false] {
        let mut story = Story::default();
        let made = story.create(3, 1);
        let [one, two] = [1, 2].map(|session| story.unanswered(session, Call::Set(Any)));
        let read = story.unanswered(3, Call::SyncedRead);
        // What was asked for first is the second change.
        story.0.answer(one, seen(one, 2, 1, 3));
        story.0.answer(two, seen(two, 1, 1, 2));
        story.0.answer(read, if is_early { seen(made, 0, 1, 1) } else { seen(one, 2, 1, 3) });
        story.synced(3, seen(one, 2, 1, 3));
        story.can_be();
    }
}

#[test]
fn what_was_not_answered_was_done_late_or_never() {
    for is_done in [true, false] {
        let mut story = Story::default();
        let made = story.create(1, 1);
        let late = story.unanswered(2, Call::Set(Any));
        story.unanswered(3, Call::Delete(Version(7)));
        story.synced(1, seen(made, 0, 1, 1));
        story.synced(1, seen(made, 0, 1, 1));
        if is_done {
            story.synced(1, seen(late, 1, 1, 4));
            story.set(1, Version(1), 2, 1, 5);
        } else {
            story.set(1, Version(0), 1, 1, 5);
        }
        story.can_be();
    }
}

#[test]
fn a_node_that_is_gone_was_deleted_by_whom_was_not_answered() {
    let mut story = Story::default();
    story.create(1, 1);
    story.unanswered(2, Call::Delete(Any));
    story.synced(1, Answer::NoNode);
    // Nobody saw this one either: its number is nobody's.
    story.unanswered(3, Call::Create);
    story.set(1, Version(0), 1, 4, 6);
    story.can_be();
}

#[test]
fn reads_without_a_sync_may_be_of_the_past() {
    let mut story = Story::default();
    let made = story.create(1, 1);
    let set = story.set(1, Any, 1, 1, 2);
    story.delete(1);
    story.read(2, Answer::NoNode);
    story.read(2, seen(made, 0, 1, 1));
    story.read(3, seen(set, 1, 1, 2));
    story.read(2, seen(set, 1, 1, 2));
    story.read(2, Answer::NoNode);
    story.read(3, Answer::NoNode);
    story.can_be();
}

#[test]
fn an_update_is_not_lost() {
    let mut story = Story::default();
    story.create(1, 1);
    let [one, two] = [1, 2].map(|session| story.unanswered(session, Call::Set(Version(0))));
    story.0.answer(one, seen(one, 1, 1, 2));
    story.0.answer(two, seen(two, 1, 1, 3));
    story.cannot_be(NO_ORDER);
}

#[test]
fn a_read_after_a_sync_is_of_no_past() {
    let mut story = Story::default();
    let made = story.create(1, 1);
    story.set(1, Any, 1, 1, 2);
    story.synced(2, seen(made, 0, 1, 1));
    story.cannot_be(NO_ORDER);

    let mut story = Story::default();
    story.create(1, 1);
    story.synced(2, Answer::NoNode);
    story.cannot_be(NO_ORDER);
}

/// Though both are at once with the set.
#[test]
fn of_two_reads_after_syncs_the_later_is_not_of_before() {
    let mut story = Story::default();
    let made = story.create(1, 1);
    let set = story.unanswered(1, Call::Set(Any));
    story.synced(2, seen(set, 1, 1, 2));
    story.synced(3, seen(made, 0, 1, 1));
    story.0.answer(set, seen(set, 1, 1, 2));
    story.cannot_be(NO_ORDER);
}

#[test]
fn what_was_refused_is_not_done() {
    for (call, answer) in [(Call::Set(Version(4)), Answer::BadVersion), (Call::Set(Any), Answer::NoNode)] {
        let mut story = Story::default();
        story.create(1, 1);
        let refused = story.refused(2, call, answer);
        story.synced(1, seen(refused, 1, 1, 2));
        story.cannot_be(NO_ORDER);
    }
}

#[test]
fn what_can_be_done_is_not_refused() {
    for (call, answer) in [
        (Call::Set(Version(0)), Answer::BadVersion),
        (Call::Delete(Any), Answer::NoNode),
        (Call::Delete(Any), Answer::BadVersion),
        (Call::Create, Answer::NoNode),
    ] {
        let mut story = Story::default();
        story.create(1, 1);
        story.refused(2, call, answer);
        story.cannot_be(NO_ORDER);
    }
    let mut story = Story::default();
    story.refused(2, Call::Create, Answer::NodeExists);
    story.cannot_be(NO_ORDER);
}

#[test]
fn what_expects_another_version_is_not_done() {
    let mut story = Story::default();
    story.create(1, 1);
    story.set(2, Version(1), 1, 1, 2);
    story.cannot_be(NO_ORDER);

    let mut story = Story::default();
    story.create(1, 1);
    story.on(2, KEY, Call::Delete(Version(1)), |_| Answer::Deleted);
    story.cannot_be(NO_ORDER);
}

#[test]
fn what_is_deleted_does_not_come_back() {
    let mut story = Story::default();
    let made = story.create(1, 1);
    story.delete(1);
    story.synced(2, seen(made, 0, 1, 1));
    story.cannot_be(NO_ORDER);

    let mut story = Story::default();
    story.create(1, 1);
    story.delete(1);
    story.set(2, Any, 1, 1, 3);
    story.cannot_be(NO_ORDER);

    let mut story = Story::default();
    story.create(1, 1);
    story.delete(1);
    story.on(2, KEY, Call::Delete(Any), |_| Answer::Deleted);
    story.cannot_be(NO_ORDER);

    // Nor in place of another.
    let mut story = Story::default();
    let made = story.create(1, 1);
    story.delete(1);
    story.create(1, 3);
    story.synced(2, seen(made, 0, 1, 1));
    story.cannot_be(NO_ORDER);
}

#[test]
fn an_answered_change_stays() {
    let mut story = Story::default();
    story.create(1, 1);
    story.synced(1, Answer::NoNode);
    story.cannot_be(NO_ORDER);

    let mut story = Story::default();
    story.create(1, 1);
    story.create(2, 2);
    story.cannot_be(NO_ORDER);
}

#[test]
fn versions_leave_none_out() {
    let mut story = Story::default();
    story.create(1, 1);
    story.set(1, Any, 2, 1, 2);
    story.cannot_be(NO_ORDER);
}

/// It has the same first change, or it is another node.
#[test]
fn a_set_makes_no_node() {
    let mut story = Story::default();
    story.create(1, 2);
    story.set(1, Any, 1, 1, 3);
    story.cannot_be(NO_ORDER);
}

#[test]
fn what_was_not_answered_is_not_done_after_a_sync_of_its_session() {
    let story = || {
        let mut story = Story::default();
        let made = story.create(1, 1);
        let late = story.unanswered(2, Call::Set(Any));
        (story, made, late)
    };
    let (mut on_it, made, late) = story();
    on_it.synced(2, seen(made, 0, 1, 1));
    on_it.synced(1, seen(late, 1, 1, 2));
    on_it.cannot_be(NO_ORDER);
    // Wherever it synced.
    let (mut elsewhere, made, late) = story();
    elsewhere.on(2, "/b", Call::SyncedRead, |_| Answer::NoNode);
    elsewhere.synced(1, seen(made, 0, 1, 1));
    elsewhere.synced(1, seen(late, 1, 1, 2));
    elsewhere.cannot_be(NO_ORDER);
    // Of another session nothing is known; and a read settles nothing.
    let (mut other, made, late) = story();
    other.synced(3, seen(made, 0, 1, 1));
    other.read(2, seen(made, 0, 1, 1));
    other.synced(1, seen(made, 0, 1, 1));
    other.synced(1, seen(late, 1, 1, 2));
    other.can_be();
}

/// Both were done, and the first was not answered.
#[test]
fn a_sessions_changes_are_done_in_its_order() {
    let mut story = Story::default();
    story.create(1, 1);
    let first = story.unanswered(2, Call::Set(Any));
    let second = story.unanswered(2, Call::Set(Any));
    let read = story.unanswered(1, Call::SyncedRead);
    story.0.answer(second, seen(second, 1, 1, 2));
    story.0.answer(read, seen(first, 2, 1, 3));
    story.cannot_be(NO_ORDER);
}

#[test]
fn changes_are_numbered_in_their_order_over_all_keys() {
    let mut story = Story::default();
    story.create(1, 5);
    story.on(2, "/b", Call::Create, |at| seen(at, 0, 4, 4));
    story.cannot_be("numbered before one that was known");

    let mut story = Story::default();
    let one = story.unanswered(1, Call::Create);
    story.on(2, "/b", Call::Create, |at| seen(at, 0, 4, 4));
    story.0.answer(one, seen(one, 0, 3, 3));
    story.can_be();

    // At once, they are still in the order of their versions.
    let mut story = Story::default();
    story.create(3, 1);
    let [one, two] = [1, 2].map(|session| story.unanswered(session, Call::Set(Any)));
    story.0.answer(one, seen(one, 1, 1, 3));
    story.0.answer(two, seen(two, 2, 1, 2));
    story.cannot_be(NO_ORDER);
}

#[test]
fn a_change_is_told_of_in_one_way() {
    let mut story = Story::default();
    let made = story.create(1, 1);
    story.read(2, seen(made, 0, 2, 2));
    story.cannot_be("told of in two ways");

    let mut story = Story::default();
    story.create(1, 1);
    story.on(2, "/b", Call::Create, |at| seen(at, 0, 1, 1));
    story.cannot_be("told of in two ways");

    let mut story = Story::default();
    story.on(1, KEY, Call::Create, |at| seen(at, 0, 1, 2));
    story.cannot_be("told of in two ways");

    // By who is not told what was written, too.
    let untold = Answer::Node(Seen { value: None, version: 0, created: Zxid(1), modified: Zxid(1) });
    let mut story = Story::default();
    story.create(1, 1);
    story.on(2, "/b", Call::Read, |_| untold);
    story.cannot_be("told of in two ways");

    let mut story = Story::default();
    let one = story.unanswered(1, Call::Create);
    story.read(3, untold);
    story.read(3, seen(one, 0, 1, 1));
    story.read(3, untold);
    story.can_be();

    let mut story = Story::default();
    let [one, two] = [1, 2].map(|session| story.unanswered(session, Call::Create));
    story.read(3, untold);
    story.read(3, seen(one, 0, 1, 1));
    story.read(4, seen(two, 0, 1, 1));
    story.cannot_be("told of in two ways");
}

#[test]
fn what_is_read_was_written_there_and_before() {
    let mut story = Story::default();
    story.create(1, 1);
    story.read(2, seen(Value(7), 0, 2, 2));
    story.cannot_be("nobody wrote");

    let mut story = Story::default();
    story.delete(1);
    story.read(2, seen(Value(0), 1, 2, 3));
    story.cannot_be("nobody wrote");

    let mut story = Story::default();
    let made = story.unanswered(1, Call::Create);
    story.read(2, seen(made, 1, 2, 3));
    story.cannot_be("not what was written");

    let mut story = Story::default();
    let made = story.unanswered(1, Call::Create);
    story.on(2, "/b", Call::Read, |_| seen(made, 0, 2, 2));
    story.cannot_be("not what was written");

    let mut story = Story::default();
    story.read(2, seen(Value(1), 0, 2, 2));
    story.create(1, 2);
    story.cannot_be("numbered before one that was known");
}

#[test]
fn a_session_reads_no_older_value_after_a_newer() {
    let mut story = Story::default();
    let made = story.create(1, 1);
    let set = story.set(1, Any, 1, 1, 2);
    story.read(2, seen(set, 1, 1, 2));
    story.read(2, seen(made, 0, 1, 1));
    story.cannot_be(WENT_BACK);
}

#[test]
fn a_session_reads_what_it_did() {
    let mut story = Story::default();
    let made = story.create(1, 1);
    story.set(2, Any, 1, 1, 2);
    story.read(2, seen(made, 0, 1, 1));
    story.cannot_be(WENT_BACK);

    let mut story = Story::default();
    let made = story.create(1, 1);
    story.delete(2);
    story.read(2, seen(made, 0, 1, 1));
    story.cannot_be(WENT_BACK);

    let mut story = Story::default();
    story.create(1, 1);
    story.read(1, Answer::NoNode);
    story.cannot_be(WENT_BACK);
}

#[test]
fn a_refusal_shows_a_session_what_there_is() {
    let mut story = Story::default();
    let made = story.create(1, 1);
    story.set(1, Any, 1, 1, 2);
    story.refused(2, Call::Set(Version(0)), Answer::BadVersion);
    story.read(2, seen(made, 0, 1, 1));
    story.cannot_be(WENT_BACK);
}

#[test]
fn a_view_is_of_all_keys() {
    let story = || {
        let mut story = Story::default();
        let made = story.create(1, 1);
        story.set(1, Any, 1, 1, 2);
        let other = story.on(1, "/b", Call::Create, |at| seen(at, 0, 3, 3));
        (story, made, other)
    };
    let (mut back, made, other) = story();
    back.on(2, "/b", Call::Read, |_| seen(other, 0, 3, 3));
    back.read(2, seen(made, 0, 1, 1));
    back.cannot_be(WENT_BACK);
    let (mut on, made, other) = story();
    on.read(2, seen(made, 0, 1, 1));
    on.on(2, "/b", Call::Read, |_| seen(other, 0, 3, 3));
    on.can_be();
    // A sync shows all that was known to anybody.
    let (mut synced, made, _) = story();
    synced.on(2, "/c", Call::SyncedRead, |_| Answer::NoNode);
    synced.read(2, seen(made, 0, 1, 1));
    synced.cannot_be(WENT_BACK);
}

#[test]
fn what_a_session_saw_gone_does_not_come_back() {
    let mut story = Story::default();
    let made = story.create(1, 1);
    story.delete(1);
    story.read(2, seen(made, 0, 1, 1));
    story.read(2, Answer::NoNode);
    story.read(2, seen(made, 0, 1, 1));
    story.cannot_be(WENT_BACK);
}

#[test]
fn who_sees_what_came_after_a_deletion_sees_that_too() {
    let story = || {
        let mut story = Story::default();
        let made = story.create(1, 1);
        story.delete(1);
        let after = story.on(3, "/b", Call::Create, |at| seen(at, 0, 3, 3));
        (story, made, after)
    };
    let (mut back, made, after) = story();
    back.on(2, "/b", Call::Read, |_| seen(after, 0, 3, 3));
    back.read(2, seen(made, 0, 1, 1));
    back.cannot_be(WENT_BACK);
    let (mut on, made, after) = story();
    on.read(2, seen(made, 0, 1, 1));
    on.on(2, "/b", Call::Read, |_| seen(after, 0, 3, 3));
    on.read(2, Answer::NoNode);
    on.can_be();
}

#[test]
fn who_sees_that_a_node_is_gone_has_seen_its_end() {
    let mut story = Story::default();
    let made = story.create(1, 1);
    let old = story.on(1, "/b", Call::Create, |at| seen(at, 0, 2, 2));
    story.on(1, "/b", Call::Set(Any), |at| seen(at, 1, 2, 3));
    story.set(1, Any, 1, 1, 4);
    story.delete(1);
    story.read(2, seen(made, 0, 1, 1));
    story.read(2, Answer::NoNode);
    story.on(2, "/b", Call::Read, |_| seen(old, 0, 2, 2));
    story.cannot_be(WENT_BACK);
}

#[test]
fn a_node_that_nobody_deleted_is_not_missing() {
    let story = || {
        let mut story = Story::default();
        let made = story.create(1, 1);
        story.read(2, seen(made, 0, 1, 1));
        story
    };
    let mut missing = story();
    missing.read(2, Answer::NoNode);
    // Too late.
    missing.delete(3);
    missing.cannot_be(WENT_BACK);
    let mut deleted = story();
    deleted.unanswered(3, Call::Delete(Any));
    deleted.read(2, Answer::NoNode);
    deleted.can_be();
    // Made anew, it was deleted; but who has seen that knows when.
    let mut anew = story();
    anew.delete(3);
    let made = anew.create(3, 4);
    anew.read(2, Answer::NoNode);
    anew.read(2, seen(made, 0, 4, 4));
    anew.read(2, Answer::NoNode);
    anew.cannot_be(WENT_BACK);
}

#[test]
fn a_history_that_cannot_be_is_told_in_lines() {
    let mut story = Story::default();
    let made = story.create(1, 1);
    story.unanswered(3, Call::Set(Version(4)));
    story.set(2, Version(0), 1, 1, 2);
    story.on(1, "/b", Call::Delete(Any), |_| Answer::NoNode);
    story.synced(1, seen(made, 0, 1, 1));
    let told = story.0.check().unwrap_err();
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(
        lines[2..],
        [
            "      1 ..    2  session 1   create /a as 0                     0, version 0, made by 1, last change 1",
            "?     3 ..    -  session 3   set /a to 1 from version 4         not answered",
            "      4 ..    5  session 2   set /a to 2 from version 0         2, version 1, made by 1, last change 2",
            "?     8 ..    9  session 1   sync and read /a                   0, version 0, made by 1, last change 1",
            "after that order it is: 2, version 1",
        ]
    );
}

/// Six at once again and again, some of whom are never heard: as it is wrong at the end, all orders are tried.
#[test]
fn a_search_that_fails_ends_soon() {
    let mut story = Story::default();
    let (mut version, mut last) = (0, story.create(1, 1));
    let made = last;
    for round in 0..30 {
        let set = story.unanswered(1, Call::Set(Any));
        let reads: Vec<Value> = (2..=6).map(|session| story.unanswered(session, Call::SyncedRead)).collect();
        let now = |version: i32| i64::from(version) + 1;
        for (at, read) in reads.into_iter().enumerate() {
            let answer =
                if at < 2 { seen(last, version, 1, now(version)) } else { seen(set, version + 1, 1, now(version + 1)) };
            story.0.answer(read, answer);
        }
        (version, last) = (version + 1, set);
        story.0.answer(set, seen(set, version, 1, now(version)));
        if round % 6 == 0 {
            story.unanswered(100 + round, Call::Set(Version(1_000)));
            story.unanswered(200 + round, Call::Delete(Version(1_000)));
        }
    }
    story.synced(1, seen(made, 0, 1, 1));
    story.cannot_be(NO_ORDER);
}
