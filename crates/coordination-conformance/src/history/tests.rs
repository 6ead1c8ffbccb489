//! Tests of the history checker, with valid and invalid histories.

use super::*;
use coordination::tree::Expected::{Any, Version};

const KEY: &str = "/a";

/// Builds a history whose calls run one after another, except calls without a response.
#[derive(Default)]
struct Script(History);

fn observed(Value(value): Value, version: i32, created: i64, modified: i64) -> Response {
    Response::Node(Observation { value: Some(Value(value)), version, created: Zxid(created), modified: Zxid(modified) })
}

impl Script {
    fn on(&mut self, session: usize, key: &str, call: Call, response: impl FnOnce(Value) -> Response) -> Value {
        let at = self.0.request(session, key, call);
        self.0.respond(at, response(at));
        at
    }

    fn without_response(&mut self, session: usize, call: Call) -> Value {
        self.0.request(session, KEY, call)
    }

    fn rejected(&mut self, session: usize, call: Call, response: Response) -> Value {
        self.on(session, KEY, call, |_| response)
    }

    fn create(&mut self, session: usize, zxid: i64) -> Value {
        self.on(session, KEY, Call::Create, |at| observed(at, 0, zxid, zxid))
    }

    /// Sets the node. `version` is the node's version after the set.
    fn set(&mut self, session: usize, expected: Expected, version: i32, created: i64, modified: i64) -> Value {
        self.on(session, KEY, Call::Set(expected), |at| observed(at, version, created, modified))
    }

    fn delete(&mut self, session: usize) {
        self.on(session, KEY, Call::Delete(Any), |_| Response::Deleted);
    }

    fn synced(&mut self, session: usize, response: Response) {
        self.on(session, KEY, Call::SyncedRead, |_| response);
    }

    fn read(&mut self, session: usize, response: Response) {
        self.on(session, KEY, Call::Read, |_| response);
    }

    #[track_caller]
    fn assert_valid(self) {
        self.0.check().unwrap();
    }

    #[track_caller]
    fn assert_invalid(self, why: &str) {
        let reason = self.0.check().expect_err("the history is invalid");
        assert!(reason.contains(why), "{reason}");
    }
}

const NO_ORDER: &str = "no order of the calls on /a explains their responses";
const WENT_BACK: &str = "a session observed an older state than before";

#[test]
fn history_of_sequential_calls_is_valid() {
    let mut script = Script::default();
    script.synced(1, Response::NoNode);
    script.rejected(1, Call::Set(Any), Response::NoNode);
    script.create(1, 5);
    script.rejected(2, Call::Create, Response::NodeExists);
    let set = script.set(2, Version(0), 1, 5, 6);
    script.rejected(1, Call::Set(Version(0)), Response::BadVersion);
    script.rejected(1, Call::Delete(Version(2)), Response::BadVersion);
    script.synced(1, observed(set, 1, 5, 6));
    script.delete(1);
    script.synced(2, Response::NoNode);
    let again = script.create(2, 9);
    script.synced(1, observed(again, 0, 9, 9));
    script.assert_valid();
}

#[test]
fn concurrent_calls_may_take_effect_in_any_order() {
    for is_early in [true, false] {
        let mut script = Script::default();
        let made = script.create(3, 1);
        let [one, two] = [1, 2].map(|session| script.without_response(session, Call::Set(Any)));
        let read = script.without_response(3, Call::SyncedRead);
        // Session 1 requested its set first, but the set of session 2 takes effect first.
        script.0.respond(one, observed(one, 2, 1, 3));
        script.0.respond(two, observed(two, 1, 1, 2));
        script.0.respond(read, if is_early { observed(made, 0, 1, 1) } else { observed(one, 2, 1, 3) });
        script.synced(3, observed(one, 2, 1, 3));
        script.assert_valid();
    }
}

#[test]
fn call_without_a_response_may_take_effect_late_or_never() {
    for is_done in [true, false] {
        let mut script = Script::default();
        let made = script.create(1, 1);
        let late = script.without_response(2, Call::Set(Any));
        script.without_response(3, Call::Delete(Version(7)));
        script.synced(1, observed(made, 0, 1, 1));
        script.synced(1, observed(made, 0, 1, 1));
        if is_done {
            script.synced(1, observed(late, 1, 1, 4));
            script.set(1, Version(1), 2, 1, 5);
        } else {
            script.set(1, Version(0), 1, 1, 5);
        }
        script.assert_valid();
    }
}

#[test]
fn node_may_be_missing_after_a_delete_call_that_got_no_response() {
    let mut script = Script::default();
    script.create(1, 1);
    script.without_response(2, Call::Delete(Any));
    script.synced(1, Response::NoNode);
    // This create has no response, so the check does not know the number of the change.
    script.without_response(3, Call::Create);
    script.set(1, Version(0), 1, 4, 6);
    script.assert_valid();
}

#[test]
fn read_without_a_sync_may_be_stale() {
    let mut script = Script::default();
    let made = script.create(1, 1);
    let set = script.set(1, Any, 1, 1, 2);
    script.delete(1);
    script.read(2, Response::NoNode);
    script.read(2, observed(made, 0, 1, 1));
    script.read(3, observed(set, 1, 1, 2));
    script.read(2, observed(set, 1, 1, 2));
    script.read(2, Response::NoNode);
    script.read(3, Response::NoNode);
    script.assert_valid();
}

#[test]
fn history_with_a_lost_update_is_invalid() {
    let mut script = Script::default();
    script.create(1, 1);
    let [one, two] = [1, 2].map(|session| script.without_response(session, Call::Set(Version(0))));
    script.0.respond(one, observed(one, 1, 1, 2));
    script.0.respond(two, observed(two, 1, 1, 3));
    script.assert_invalid(NO_ORDER);
}

#[test]
fn stale_read_after_a_sync_is_invalid() {
    let mut script = Script::default();
    let made = script.create(1, 1);
    script.set(1, Any, 1, 1, 2);
    script.synced(2, observed(made, 0, 1, 1));
    script.assert_invalid(NO_ORDER);

    let mut script = Script::default();
    script.create(1, 1);
    script.synced(2, Response::NoNode);
    script.assert_invalid(NO_ORDER);
}

/// Both synced reads are concurrent with the set of session 1.
#[test]
fn synced_read_never_returns_an_older_value_than_an_earlier_one() {
    let mut script = Script::default();
    let made = script.create(1, 1);
    let set = script.without_response(1, Call::Set(Any));
    script.synced(2, observed(set, 1, 1, 2));
    script.synced(3, observed(made, 0, 1, 1));
    script.0.respond(set, observed(set, 1, 1, 2));
    script.assert_invalid(NO_ORDER);
}

#[test]
fn history_in_which_a_rejected_call_takes_effect_is_invalid() {
    for (call, response) in [(Call::Set(Version(4)), Response::BadVersion), (Call::Set(Any), Response::NoNode)] {
        let mut script = Script::default();
        script.create(1, 1);
        let rejected = script.rejected(2, call, response);
        script.synced(1, observed(rejected, 1, 1, 2));
        script.assert_invalid(NO_ORDER);
    }
}

#[test]
fn rejection_of_a_call_that_must_succeed_is_invalid() {
    for (call, response) in [
        (Call::Set(Version(0)), Response::BadVersion),
        (Call::Delete(Any), Response::NoNode),
        (Call::Delete(Any), Response::BadVersion),
        (Call::Create, Response::NoNode),
    ] {
        let mut script = Script::default();
        script.create(1, 1);
        script.rejected(2, call, response);
        script.assert_invalid(NO_ORDER);
    }
    let mut script = Script::default();
    script.rejected(2, Call::Create, Response::NodeExists);
    script.assert_invalid(NO_ORDER);
}

#[test]
fn successful_change_with_a_wrong_expected_version_is_invalid() {
    let mut script = Script::default();
    script.create(1, 1);
    script.set(2, Version(1), 1, 1, 2);
    script.assert_invalid(NO_ORDER);

    let mut script = Script::default();
    script.create(1, 1);
    script.on(2, KEY, Call::Delete(Version(1)), |_| Response::Deleted);
    script.assert_invalid(NO_ORDER);
}

#[test]
fn history_in_which_a_deleted_node_reappears_is_invalid() {
    let mut script = Script::default();
    let made = script.create(1, 1);
    script.delete(1);
    script.synced(2, observed(made, 0, 1, 1));
    script.assert_invalid(NO_ORDER);

    let mut script = Script::default();
    script.create(1, 1);
    script.delete(1);
    script.set(2, Any, 1, 1, 3);
    script.assert_invalid(NO_ORDER);

    let mut script = Script::default();
    script.create(1, 1);
    script.delete(1);
    script.on(2, KEY, Call::Delete(Any), |_| Response::Deleted);
    script.assert_invalid(NO_ORDER);

    // Once a session has created a new node at the path, a read cannot return the deleted node.
    let mut script = Script::default();
    let made = script.create(1, 1);
    script.delete(1);
    script.create(1, 3);
    script.synced(2, observed(made, 0, 1, 1));
    script.assert_invalid(NO_ORDER);
}

#[test]
fn history_that_loses_a_confirmed_change_is_invalid() {
    let mut script = Script::default();
    script.create(1, 1);
    script.synced(1, Response::NoNode);
    script.assert_invalid(NO_ORDER);

    let mut script = Script::default();
    script.create(1, 1);
    script.create(2, 2);
    script.assert_invalid(NO_ORDER);
}

#[test]
fn history_that_skips_a_version_is_invalid() {
    let mut script = Script::default();
    script.create(1, 1);
    script.set(1, Any, 2, 1, 2);
    script.assert_invalid(NO_ORDER);
}

/// A set does not change the creation number of its node. If the creation number differs, the node is a different node.
#[test]
fn set_call_that_changes_the_creation_number_of_a_node_is_invalid() {
    let mut script = Script::default();
    script.create(1, 2);
    script.set(1, Any, 1, 1, 3);
    script.assert_invalid(NO_ORDER);
}

#[test]
fn call_takes_effect_before_the_next_sync_of_its_session_or_never() {
    let script = || {
        let mut script = Script::default();
        let made = script.create(1, 1);
        let late = script.without_response(2, Call::Set(Any));
        (script, made, late)
    };
    let (mut on_it, made, late) = script();
    on_it.synced(2, observed(made, 0, 1, 1));
    on_it.synced(1, observed(late, 1, 1, 2));
    on_it.assert_invalid(NO_ORDER);
    // After a sync, an earlier call of the same session can no longer take effect, even if the sync names another key.
    let (mut elsewhere, made, late) = script();
    elsewhere.on(2, "/b", Call::SyncedRead, |_| Response::NoNode);
    elsewhere.synced(1, observed(made, 0, 1, 1));
    elsewhere.synced(1, observed(late, 1, 1, 2));
    elsewhere.assert_invalid(NO_ORDER);
    // After a sync of another session, or a read without a sync, an earlier call without a response can still take
    // effect.
    let (mut other, made, late) = script();
    other.synced(3, observed(made, 0, 1, 1));
    other.read(2, observed(made, 0, 1, 1));
    other.synced(1, observed(made, 0, 1, 1));
    other.synced(1, observed(late, 1, 1, 2));
    other.assert_valid();
}

/// Both changes of the session take effect, but in the wrong order. The first change receives no response.
#[test]
fn reordered_changes_of_a_session_are_invalid() {
    let mut script = Script::default();
    script.create(1, 1);
    let first = script.without_response(2, Call::Set(Any));
    let second = script.without_response(2, Call::Set(Any));
    let read = script.without_response(1, Call::SyncedRead);
    script.0.respond(second, observed(second, 1, 1, 2));
    script.0.respond(read, observed(first, 2, 1, 3));
    script.assert_invalid(NO_ORDER);
}

#[test]
fn change_numbers_increase_in_the_order_of_changes_across_all_keys() {
    let mut script = Script::default();
    script.create(1, 5);
    script.on(2, "/b", Call::Create, |at| observed(at, 0, 4, 4));
    script.assert_invalid("numbered before a known change");

    let mut script = Script::default();
    let one = script.without_response(1, Call::Create);
    script.on(2, "/b", Call::Create, |at| observed(at, 0, 4, 4));
    script.0.respond(one, observed(one, 0, 3, 3));
    script.assert_valid();

    // The versions of a node show the order of its concurrent changes.
    let mut script = Script::default();
    script.create(3, 1);
    let [one, two] = [1, 2].map(|session| script.without_response(session, Call::Set(Any)));
    script.0.respond(one, observed(one, 1, 1, 3));
    script.0.respond(two, observed(two, 2, 1, 2));
    script.assert_invalid(NO_ORDER);
}

#[test]
fn contradictory_responses_about_one_change_are_invalid() {
    let mut script = Script::default();
    let made = script.create(1, 1);
    script.read(2, observed(made, 0, 2, 2));
    script.assert_invalid("reported in two ways");

    let mut script = Script::default();
    script.create(1, 1);
    script.on(2, "/b", Call::Create, |at| observed(at, 0, 1, 1));
    script.assert_invalid("reported in two ways");

    let mut script = Script::default();
    script.on(1, KEY, Call::Create, |at| observed(at, 0, 1, 2));
    script.assert_invalid("reported in two ways");

    // A response without the node's value must also agree with the other responses about the same change.
    let no_value = Response::Node(Observation { value: None, version: 0, created: Zxid(1), modified: Zxid(1) });
    let mut script = Script::default();
    script.create(1, 1);
    script.on(2, "/b", Call::Read, |_| no_value);
    script.assert_invalid("reported in two ways");

    let mut script = Script::default();
    let one = script.without_response(1, Call::Create);
    script.read(3, no_value);
    script.read(3, observed(one, 0, 1, 1));
    script.read(3, no_value);
    script.assert_valid();

    let mut script = Script::default();
    let [one, two] = [1, 2].map(|session| script.without_response(session, Call::Create));
    script.read(3, no_value);
    script.read(3, observed(one, 0, 1, 1));
    script.read(4, observed(two, 0, 1, 1));
    script.assert_invalid("reported in two ways");
}

#[test]
fn read_of_an_unwritten_value_is_invalid() {
    let mut script = Script::default();
    script.create(1, 1);
    script.read(2, observed(Value(7), 0, 2, 2));
    script.assert_invalid("no call wrote");

    let mut script = Script::default();
    script.delete(1);
    script.read(2, observed(Value(0), 1, 2, 3));
    script.assert_invalid("no call wrote");

    let mut script = Script::default();
    let made = script.without_response(1, Call::Create);
    script.read(2, observed(made, 1, 2, 3));
    script.assert_invalid("differs from its write");

    let mut script = Script::default();
    let made = script.without_response(1, Call::Create);
    script.on(2, "/b", Call::Read, |_| observed(made, 0, 2, 2));
    script.assert_invalid("differs from its write");

    let mut script = Script::default();
    script.read(2, observed(Value(1), 0, 2, 2));
    script.create(1, 2);
    script.assert_invalid("numbered before a known change");
}

#[test]
fn session_never_reads_an_older_value_than_before() {
    let mut script = Script::default();
    let made = script.create(1, 1);
    let set = script.set(1, Any, 1, 1, 2);
    script.read(2, observed(set, 1, 1, 2));
    script.read(2, observed(made, 0, 1, 1));
    script.assert_invalid(WENT_BACK);
}

#[test]
fn session_reads_its_own_changes() {
    let mut script = Script::default();
    let made = script.create(1, 1);
    script.set(2, Any, 1, 1, 2);
    script.read(2, observed(made, 0, 1, 1));
    script.assert_invalid(WENT_BACK);

    let mut script = Script::default();
    let made = script.create(1, 1);
    script.delete(2);
    script.read(2, observed(made, 0, 1, 1));
    script.assert_invalid(WENT_BACK);

    let mut script = Script::default();
    script.create(1, 1);
    script.read(1, Response::NoNode);
    script.assert_invalid(WENT_BACK);
}

#[test]
fn session_never_reads_an_older_value_after_a_version_conflict() {
    let mut script = Script::default();
    let made = script.create(1, 1);
    script.set(1, Any, 1, 1, 2);
    script.rejected(2, Call::Set(Version(0)), Response::BadVersion);
    script.read(2, observed(made, 0, 1, 1));
    script.assert_invalid(WENT_BACK);
}

#[test]
fn session_that_sees_a_change_sees_every_earlier_change() {
    let script = || {
        let mut script = Script::default();
        let made = script.create(1, 1);
        script.set(1, Any, 1, 1, 2);
        let other = script.on(1, "/b", Call::Create, |at| observed(at, 0, 3, 3));
        (script, made, other)
    };
    let (mut back, made, other) = script();
    back.on(2, "/b", Call::Read, |_| observed(other, 0, 3, 3));
    back.read(2, observed(made, 0, 1, 1));
    back.assert_invalid(WENT_BACK);
    let (mut on, made, other) = script();
    on.read(2, observed(made, 0, 1, 1));
    on.on(2, "/b", Call::Read, |_| observed(other, 0, 3, 3));
    on.assert_valid();
    // After a sync, the view of a session includes every change that any session knew before the sync.
    let (mut synced, made, _) = script();
    synced.on(2, "/c", Call::SyncedRead, |_| Response::NoNode);
    synced.read(2, observed(made, 0, 1, 1));
    synced.assert_invalid(WENT_BACK);
}

#[test]
fn session_that_sees_a_deletion_never_reads_the_node_again() {
    let mut script = Script::default();
    let made = script.create(1, 1);
    script.delete(1);
    script.read(2, observed(made, 0, 1, 1));
    script.read(2, Response::NoNode);
    script.read(2, observed(made, 0, 1, 1));
    script.assert_invalid(WENT_BACK);
}

#[test]
fn session_that_sees_a_change_sees_every_earlier_deletion() {
    let script = || {
        let mut script = Script::default();
        let made = script.create(1, 1);
        script.delete(1);
        let after = script.on(3, "/b", Call::Create, |at| observed(at, 0, 3, 3));
        (script, made, after)
    };
    let (mut back, made, after) = script();
    back.on(2, "/b", Call::Read, |_| observed(after, 0, 3, 3));
    back.read(2, observed(made, 0, 1, 1));
    back.assert_invalid(WENT_BACK);
    let (mut on, made, after) = script();
    on.read(2, observed(made, 0, 1, 1));
    on.on(2, "/b", Call::Read, |_| observed(after, 0, 3, 3));
    on.read(2, Response::NoNode);
    on.assert_valid();
}

#[test]
fn session_that_sees_a_deletion_sees_every_earlier_change() {
    let mut script = Script::default();
    let made = script.create(1, 1);
    let old = script.on(1, "/b", Call::Create, |at| observed(at, 0, 2, 2));
    script.on(1, "/b", Call::Set(Any), |at| observed(at, 1, 2, 3));
    script.set(1, Any, 1, 1, 4);
    script.delete(1);
    script.read(2, observed(made, 0, 1, 1));
    script.read(2, Response::NoNode);
    script.on(2, "/b", Call::Read, |_| observed(old, 0, 2, 2));
    script.assert_invalid(WENT_BACK);
}

#[test]
fn history_in_which_an_undeleted_node_disappears_is_invalid() {
    let script = || {
        let mut script = Script::default();
        let made = script.create(1, 1);
        script.read(2, observed(made, 0, 1, 1));
        script
    };
    let mut missing = script();
    missing.read(2, Response::NoNode);
    // Session 3 deletes the node after session 2 has found no node, so this deletion does not explain the missing node.
    missing.delete(3);
    missing.assert_invalid(WENT_BACK);
    let mut deleted = script();
    deleted.without_response(3, Call::Delete(Any));
    deleted.read(2, Response::NoNode);
    deleted.assert_valid();
    // Session 3 deletes the node and creates it again. Session 2 reads the new node, and finds no node in a later read.
    // The deletion of the old node cannot be the reason.
    let mut anew = script();
    anew.delete(3);
    let made = anew.create(3, 4);
    anew.read(2, Response::NoNode);
    anew.read(2, observed(made, 0, 4, 4));
    anew.read(2, Response::NoNode);
    anew.assert_invalid(WENT_BACK);
}

#[test]
fn history_checker_reports_one_line_per_call_of_an_invalid_history() {
    let mut script = Script::default();
    let made = script.create(1, 1);
    script.without_response(3, Call::Set(Version(4)));
    script.set(2, Version(0), 1, 1, 2);
    script.on(1, "/b", Call::Delete(Any), |_| Response::NoNode);
    script.synced(1, observed(made, 0, 1, 1));
    let reason = script.0.check().unwrap_err();
    let lines: Vec<&str> = reason.lines().collect();
    assert_eq!(
        lines[2..],
        [
            "      1 ..    2  session 1   create /a as 0                     0, version 0, created by 1, last change 1",
            "?     3 ..    -  session 3   set /a to 1 from version 4         no response",
            "      4 ..    5  session 2   set /a to 2 from version 0         2, version 1, created by 1, last change 2",
            "?     8 ..    9  session 1   sync and read /a                   0, version 0, created by 1, last change 1",
            "content of the node after the calls in this order: value 2, version 1",
        ]
    );
}

/// Records six concurrent calls per round, and some calls without a response. The final read returns an outdated value,
/// so no order is valid and the search tries all orders.
#[test]
fn checker_quickly_rejects_a_history_without_a_valid_order() {
    let mut script = Script::default();
    let (mut version, mut last) = (0, script.create(1, 1));
    let made = last;
    for round in 0..30 {
        let set = script.without_response(1, Call::Set(Any));
        let reads: Vec<Value> = (2..=6).map(|session| script.without_response(session, Call::SyncedRead)).collect();
        let now = |version: i32| i64::from(version) + 1;
        for (at, read) in reads.into_iter().enumerate() {
            let response = if at < 2 {
                observed(last, version, 1, now(version))
            } else {
                observed(set, version + 1, 1, now(version + 1))
            };
            script.0.respond(read, response);
        }
        (version, last) = (version + 1, set);
        script.0.respond(set, observed(set, version, 1, now(version)));
        if round % 6 == 0 {
            script.without_response(100 + round, Call::Set(Version(1_000)));
            script.without_response(200 + round, Call::Delete(Version(1_000)));
        }
    }
    script.synced(1, observed(made, 0, 1, 1));
    script.assert_invalid(NO_ORDER);
}
