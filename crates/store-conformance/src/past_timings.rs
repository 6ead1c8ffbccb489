//! Cases for the timings of revisions that changes and cancellations ended.

use std::sync::Arc;
use std::time::Duration;

use domain::{Author, Cron, PastTiming, Revision, Schedule, ScheduleVersion, Timestamp, TimingEnd, When};
use store::{Cancellation, Change, Insert};

use crate::Subject;
use crate::fixture::{Fixture, TENANT, due_of, insert_in, minute, only};

/// Instant at which the replacements of these cases happen.
const UPDATED_AT: Timestamp = Timestamp::from_millis(1_700_000_050_000);

pub(super) async fn past_of(fixture: &Fixture, schedule: &Schedule) -> Vec<PastTiming> {
    fixture.store.past_timings(schedule.incarnation, Revision(0), 100).await.expect("the store accepts reads")
}

/// Returns the past timing of the revision of `schedule`, if a put at `until` replaces the revision.
fn replaced(schedule: &Schedule, until: Timestamp) -> PastTiming {
    PastTiming {
        edition: schedule.edition(),
        when: schedule.spec.when.clone(),
        from: schedule.updated_at,
        until: Some(until),
        end: TimingEnd::Replaced,
        by: None,
    }
}

/// Returns a put that gives the schedule the timing `when` at `updated_at`.
pub(super) fn put_of(fixture: &Fixture, schedule: &Schedule, when: When, updated_at: Timestamp) -> Insert {
    let incarnation = fixture.numbers.incarnation();
    let mut insert = insert_in(schedule.poller, incarnation, schedule.id.clone(), minute(9));
    let planned = Arc::make_mut(&mut insert.schedule);
    (planned.spec.when, planned.updated_at) = (when, updated_at);
    insert
}

pub(super) async fn replaced_revision_leaves_its_timing(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let first = fixture.create(fixture.named("invoice-7", minute(1))).await;
    let owner = fixture.owner(first.poller).await;
    assert_eq!(past_of(&fixture, &first).await, [], "a create leaves no past timing");

    let cron = When::Cron(Cron::parse("30 2 * * 1-5", "Europe/Berlin").expect("the expression is valid"));
    let every = When::Every { interval: Duration::from_secs(90), since: Some(minute(0)) };
    let (second, ..) = owner.put(&put_of(&fixture, &first, cron, UPDATED_AT)).await;
    let later = UPDATED_AT + Duration::from_secs(1);
    let conditional = Insert { by: Some("k1".to_owned()), ..put_of(&fixture, &first, every, later) };
    let (third, ..) = owner.put_if(&conditional, Some(second.seen())).await.expect("the schedule has not changed");
    let by_key = |past: PastTiming, key: &str| PastTiming { by: Some(key.to_owned()), ..past };
    let expected = [replaced(&first, UPDATED_AT), by_key(replaced(&second, later), "k1")];
    assert_eq!(past_of(&fixture, &first).await, expected);

    // Occurrences, the end of the schedule and rejected changes end no revision.
    let (incarnation, revision) = (third.incarnation, third.revision);
    owner.write(Change::Advance { incarnation, revision, due: due_of(&third, minute(10)) }).await;
    owner.write(Change::End { incarnation, revision }).await;
    owner.write(Change::Reencrypt(third.clone())).await;
    assert!(owner.put_if(&conditional, Some(first.seen())).await.is_err());
    assert_eq!(past_of(&fixture, &first).await, expected);

    // The end did not change the timing, which a further put ends.
    let last = Insert { by: Some("k2".to_owned()), ..put_of(&fixture, &first, When::At(minute(9)), later) };
    owner.put(&last).await;
    let past = past_of(&fixture, &first).await;
    assert_eq!(past.last(), Some(&by_key(replaced(&third, later), "k2")));
}

pub(super) async fn cancelled_revision_leaves_its_timing_and_author(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let author = Author { at: UPDATED_AT, key: Some("k1".to_owned()) };
    let cancelled = |schedule: &Schedule, author: Option<&Author>| PastTiming {
        until: author.map(|author| author.at),
        end: TimingEnd::Cancelled,
        by: author.and_then(|author| author.key.clone()),
        ..replaced(schedule, UPDATED_AT)
    };

    // A cancellation record.
    let recorded = fixture.create(fixture.named("recorded", minute(1))).await;
    let owner = fixture.owner(recorded.poller).await;
    let mark = Cancellation { tenant: TENANT, id: recorded.id.clone(), author: Some(author.clone()) };
    let result = only(fixture.store.append_cancellations(vec![mark.clone()]).await.expect("the store accepts records"));
    if !result.applied {
        owner.write(Change::Cancel(recorded.incarnation)).await;
    }
    let expected = [cancelled(&recorded, Some(&author))];
    assert_eq!(past_of(&fixture, &recorded).await, expected);
    // A second cancellation has no effect.
    let again = Author { at: UPDATED_AT + Duration::from_secs(5), key: None };
    let repeated = Cancellation { author: Some(again), ..mark };
    only(fixture.store.append_cancellations(vec![repeated]).await.expect("the store accepts records"));
    assert_eq!(past_of(&fixture, &recorded).await, expected);

    // A conditional cancellation, and a cancellation without an author.
    let by_version = fixture.create(fixture.named("by-version", minute(1))).await;
    let owner = fixture.owner(by_version.poller).await;
    owner.write(Change::CancelIf(by_version.edition(), Some(author.clone()))).await;
    assert_eq!(past_of(&fixture, &by_version).await, [cancelled(&by_version, Some(&author))]);
    let plain = fixture.create(fixture.named("plain", minute(1))).await;
    let owner = fixture.owner(plain.poller).await;
    owner.write(Change::Cancel(plain.incarnation)).await;
    assert_eq!(past_of(&fixture, &plain).await, [cancelled(&plain, None)]);

    // A schedule that takes the id has its own past timings.
    let (next, ..) = owner.put(&put_of(&fixture, &plain, When::At(minute(9)), UPDATED_AT)).await;
    assert_ne!(next.incarnation, plain.incarnation);
    assert_eq!(past_of(&fixture, &next).await, []);
    assert_eq!(past_of(&fixture, &plain).await.len(), 1);
}

pub(super) async fn past_timings_are_read_from_a_revision(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.named("invoice-7", minute(1))).await;
    let owner = fixture.owner(schedule.poller).await;
    for count in 0..5 {
        let updated_at = UPDATED_AT + Duration::from_secs(count);
        owner.put(&put_of(&fixture, &schedule, When::At(minute(9)), updated_at)).await;
    }
    for (from, limit, expected) in
        [(0, 2, vec![0, 1]), (2, 2, vec![2, 3]), (3, 9, vec![3, 4]), (5, 9, vec![]), (0, 0, vec![])]
    {
        let page = fixture.store.past_timings(schedule.incarnation, Revision(from), limit).await;
        let page = page.expect("the store accepts reads");
        let versions: Vec<ScheduleVersion> = page.iter().map(|past| past.edition).collect();
        let version = |number| ScheduleVersion { incarnation: schedule.incarnation, revision: Revision(number) };
        assert_eq!(versions, expected.into_iter().map(version).collect::<Vec<_>>(), "{from} {limit}");
    }
}

pub(super) async fn past_timings_survive_a_reopen_and_count_as_bytes(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.named("invoice-7", minute(1))).await;
    let owner = fixture.owner(schedule.poller).await;
    let bytes =
        async |fixture: &Fixture| only(fixture.store.usage(vec![TENANT]).await.expect("the store accepts reads")).bytes;
    let put = async || owner.put(&put_of(&fixture, &schedule, When::At(minute(9)), UPDATED_AT)).await;
    put().await;
    let before = bytes(&fixture).await;
    put().await;
    let after = bytes(&fixture).await;
    assert!(after > before, "each past timing counts: {before} {after}");
    let past = past_of(&fixture, &schedule).await;
    let fixture = fixture.reopen(subject).await;
    assert_eq!((past_of(&fixture, &schedule).await, bytes(&fixture).await), (past, after));
}
