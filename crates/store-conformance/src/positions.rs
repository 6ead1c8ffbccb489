//! Cases about the positions `closed` and `done` of pollers.

use domain::{RunState, Timestamp};
use store::{Change, Closed, Positions, WriteRejection};

use crate::Subject;
use crate::fixture::{Fixture, TENANT, due_of, minute, poller};

pub(super) async fn positions_never_decrease(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let (poller, other) = (poller(TENANT, 0), poller(TENANT, 1));
    assert_eq!(fixture.positions(poller).await, Positions { closed: Timestamp::MIN, done: Timestamp::MIN });
    let owner = fixture.owner(poller).await;
    let moves = [((5, 2), (5, 2)), ((3, 3), (5, 3)), ((8, 1), (8, 3)), ((8, 8), (8, 8)), ((7, 7), (8, 8))];
    for ((closed, done), (expected_closed, expected_done)) in moves {
        owner.close(minute(closed), minute(done)).await;
        let expected = Positions { closed: minute(expected_closed), done: minute(expected_done) };
        assert_eq!(fixture.positions(poller).await, expected);
    }
    assert_eq!(fixture.positions(other).await, Positions::default(), "each poller has its own positions");
    let both = fixture.store.closed(vec![other, poller, other]).await;
    let at = |at| Closed { at, ..Closed::default() };
    assert_eq!(
        both,
        Ok([Timestamp::MIN, minute(8), Timestamp::MIN].map(at).to_vec()),
        "the store returns the closed timestamps in the order of the requested pollers"
    );
}

pub(super) async fn reopened_poller_keeps_its_new_rows(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let poller = poller(TENANT, 0);
    let fast = fixture.owner(poller).await;
    let done = fixture.create(fixture.unnamed_in(poller, minute(5))).await;
    let open = fixture.create(fixture.unnamed_in(poller, minute(70))).await;
    fast.finish(&done, RunState::Succeeded).await;
    fast.close(minute(60), minute(60)).await;

    let owner = fixture.owner(poller).await;
    let back = Positions { closed: minute(2), done: minute(1) };
    assert_eq!(fast.try_write(Change::Reopen(back)).await, Err(WriteRejection::Superseded));
    owner.write(Change::Reopen(back)).await;
    assert_eq!(fixture.positions(poller).await, back);
    let new = fixture.create(fixture.unnamed_in(poller, minute(9))).await;
    owner.close(minute(3), minute(3)).await;
    assert_eq!(fixture.positions(poller).await, Positions { closed: minute(3), done: minute(3) });
    // The engine may have dropped the row of `done`, because that row was at or before the old position.
    let rows = fixture.all_due(poller).await;
    let rows: Vec<_> = rows.into_iter().filter(|row| row.occurrence.incarnation != done.incarnation).collect();
    assert_eq!(rows, [due_of(&new, minute(9)), due_of(&open, minute(70))]);
}

pub(super) async fn creator_observes_that_a_poller_was_reopened(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let (poller, other) = (poller(TENANT, 0), poller(TENANT, 1));
    let back = Positions { closed: minute(2), done: minute(2) };
    for reopened in 1..=2 {
        let owner = fixture.owner(poller).await;
        owner.close(minute(60 / i64::from(reopened)), minute(30)).await;
        owner.write(Change::Reopen(back)).await;
        let closed = fixture.store.closed(vec![poller, other]).await;
        let expected = Closed { at: minute(2), reopened, reopened_from: minute(60) };
        assert_eq!(closed, Ok(vec![expected, Closed::default()]));
    }
}
