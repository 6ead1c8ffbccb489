use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use domain::occurrence::Run;
use domain::retry::RetryPolicy;
use domain::{
    ApiKey, Attempt, AttemptResult, Audit, Author, DueKey, HttpTarget, Incarnation, LabelKey, Occurrence, PollerId,
    Precondition, Revision, RunFilter, RunOrigin, RunOutline, RunState, Schedule, ScheduleId, ScheduleVersion, Secret,
    ShardId, SigningSecret, Spec, Status, Target, TargetKey, Tenant, TenantId, Term, Timestamp, When,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use store::{Cancellation, Change, HandOver, HandedOver, Insert, OwnerWrite, Positions};
use stored::schedule::Head;
use stored::{hand_over, run, schedule};

use super::changed::Changed;
use super::entry::{Builder, ChangeItem, InsertItem, Kind, Reader, WriteItem};
use super::listed::Bucket;
use super::timed::Class;
use super::{key, tenant, timed};
use crate::checkpoint::RunIndex;
use crate::read::hex;

mod golden;

fn timestamp() -> impl Strategy<Value = Timestamp> {
    prop_oneof![Just(Timestamp::MIN), Just(Timestamp::MAX), any::<i64>().prop_map(Timestamp::from_millis)]
}

fn poller() -> impl Strategy<Value = PollerId> {
    (any::<u32>(), any::<u16>(), any::<u16>()).prop_map(|(tenant, generation, number)| PollerId {
        tenant: TenantId(tenant),
        generation,
        number,
    })
}

fn occurrence() -> impl Strategy<Value = Occurrence> {
    (any::<u128>(), timestamp(), any::<u32>(), any::<u16>()).prop_map(|(incarnation, nominal, revision, replay)| {
        Occurrence { incarnation: Incarnation(incarnation), nominal, revision: Revision(revision), replay }
    })
}

fn due() -> impl Strategy<Value = DueKey> {
    (timestamp(), occurrence(), any::<u16>(), any::<u32>()).prop_map(|(position, occurrence, attempt, target)| DueKey {
        position,
        occurrence,
        attempt,
        target: TargetKey(target),
    })
}

fn status() -> impl Strategy<Value = Status> {
    prop_oneof![Just(Status::Active), Just(Status::Ended), Just(Status::Cancelled)]
}

/// Strategy for schedules with all kinds of heads. A head has all fields except the id and the spec. The tests of
/// `stored` cover all kinds of specs.
fn schedule() -> impl Strategy<Value = Schedule> {
    let head = (any::<u32>(), "[A-Za-z0-9_-]{1,128}", any::<u128>(), poller());
    let state = (any::<u32>(), status(), timestamp(), timestamp(), option::of(timestamp()));
    let payload = vec(any::<u8>(), 0..50);
    (head, state, payload).prop_map(|((tenant, id, incarnation, poller), state, payload)| {
        let (revision, status, created_at, updated_at, next) = state;
        Schedule {
            tenant: TenantId(tenant),
            id: ScheduleId::new(&id).unwrap(),
            incarnation: Incarnation(incarnation),
            poller,
            revision: Revision(revision),
            status,
            created_at,
            updated_at,
            next,
            spec: Spec { payload: payload.into(), ..a_schedule().spec },
        }
    })
}

/// Strategy for runs with any number of attempts. The tests of `stored` cover all states and results.
fn run() -> impl Strategy<Value = Run> {
    (any::<u32>(), occurrence(), 0..4_usize).prop_map(|(tenant, occurrence, attempts)| Run {
        tenant: TenantId(tenant),
        occurrence,
        attempts: a_run().attempts[..attempts].to_vec(),
        ..a_run()
    })
}

fn insert() -> impl Strategy<Value = Insert> {
    let by = option::of(".{0,20}");
    (schedule(), due(), by).prop_map(|(schedule, due, by)| Insert { schedule: schedule.into(), due, by })
}

fn edition() -> impl Strategy<Value = ScheduleVersion> {
    (any::<u128>(), any::<u32>()).prop_map(|(incarnation, revision)| ScheduleVersion {
        incarnation: Incarnation(incarnation),
        revision: Revision(revision),
    })
}

fn author() -> impl Strategy<Value = Author> {
    (timestamp(), option::of(".{0,20}")).prop_map(|(at, key)| Author { at, key })
}

fn origin() -> impl Strategy<Value = RunOrigin> {
    let labels = vec((".{0,9}", ".{0,9}"), 0..4);
    (option::of(".{0,20}"), labels).prop_map(|(host, labels)| RunOrigin { host, labels })
}

fn seen() -> impl Strategy<Value = Precondition> {
    (edition(), option::of(timestamp())).prop_map(|(edition, next)| Precondition { edition, next })
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        insert().prop_map(Change::Put),
        (insert(), option::of(seen())).prop_map(|(insert, seen)| Change::PutIf { insert, seen }),
        any::<u128>().prop_map(|incarnation| Change::Cancel(Incarnation(incarnation))),
        (edition(), option::of(author())).prop_map(|(edition, author)| Change::CancelIf(edition, author)),
        (run(), option::of(due()), any::<bool>(), option::of(origin()))
            .prop_map(|(run, then, ends, origin)| Change::Run { run, then, ends, origin }),
        (any::<u128>(), any::<u32>(), due()).prop_map(|(incarnation, revision, due)| Change::Advance {
            incarnation: Incarnation(incarnation),
            revision: Revision(revision),
            due
        }),
        (any::<u128>(), any::<u32>()).prop_map(|(incarnation, revision)| Change::End {
            incarnation: Incarnation(incarnation),
            revision: Revision(revision)
        }),
        due().prop_map(Change::Defer),
        (occurrence(), due()).prop_map(|(of, due)| Change::Redrive { of, due }),
        schedule().prop_map(|schedule| Change::Reencrypt(schedule.into())),
        (timestamp(), timestamp()).prop_map(|(closed, done)| Change::Positions(Positions { closed, done })),
        (timestamp(), timestamp()).prop_map(|(closed, done)| Change::Reopen(Positions { closed, done })),
    ]
}

fn encoded(put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out);
    out
}

fn one_entry(kind: Kind, build: impl FnOnce(&mut Builder)) -> Vec<u8> {
    let mut builder = Builder::new(kind, usize::MAX);
    build(&mut builder);
    let mut entries = builder.finish();
    assert_eq!(entries.len(), 1);
    entries.remove(0)
}

fn same_insert(item: &InsertItem<'_>, insert: &Insert) -> bool {
    item.due == insert.due
        && item.head == Head::of(&insert.schedule)
        && item.id == insert.schedule.id.as_str()
        && schedule::decode(&Bytes::copy_from_slice(item.row)).as_ref() == Ok(&*insert.schedule)
}

fn same_change(item: &ChangeItem<'_>, change: &Change) -> bool {
    match (item, change) {
        (ChangeItem::Put(item), Change::Put(insert)) => same_insert(item, insert) && item.by == insert.by.as_deref(),
        (ChangeItem::PutIf { insert: a, seen: b }, Change::PutIf { insert, seen }) => {
            same_insert(a, insert) && a.by == insert.by.as_deref() && b == seen
        }
        (ChangeItem::Cancel(item), Change::Cancel(incarnation)) => item == incarnation,
        (ChangeItem::CancelIf(a, b), Change::CancelIf(edition, author)) => (a, b) == (edition, author),
        (
            ChangeItem::Run { run: item, then: item_then, ends: item_ends, origin: item_origin },
            Change::Run { run, then, ends, origin },
        ) => {
            (item_then, item_ends, item_origin) == (then, ends, origin)
                && (item.tenant, item.occurrence, item.state) == (run.tenant, run.occurrence, run.state)
                && run::decode(item.value).as_ref() == Ok(run)
        }
        (
            ChangeItem::Advance { incarnation: a, revision: b, due: c },
            Change::Advance { incarnation, revision, due },
        ) => (a, b, c) == (incarnation, revision, due),
        (ChangeItem::End { incarnation: a, revision: b }, Change::End { incarnation, revision }) => {
            (a, b) == (incarnation, revision)
        }
        (ChangeItem::Defer(item), Change::Defer(due)) => item == due,
        (ChangeItem::Redrive { of: a, due: b }, Change::Redrive { of, due }) => (a, b) == (of, due),
        (ChangeItem::Positions(item), Change::Positions(positions))
        | (ChangeItem::Reopen(item), Change::Reopen(positions)) => item == positions,
        (ChangeItem::Reencrypt { head, row }, Change::Reencrypt(schedule)) => {
            *head == Head::of(schedule) && schedule::decode(&Bytes::copy_from_slice(row)).as_ref() == Ok(&**schedule)
        }
        _ => false,
    }
}

proptest! {
    #[test]
    fn listing_bucket_decodes_its_own_rows_and_rejects_other_rows(
        tenant: u32,
        first: u128,
        others in vec(0..1_u128 << 84, 0..40),
        part: u64,
    ) {
        let bucket = Bucket::of(TenantId(tenant), Incarnation(first));
        prop_assert_eq!(Bucket::parse(&bucket.key(part)), Ok(bucket));
        let incarnations: BTreeSet<_> = others.iter().map(|low| Incarnation(first >> 84 << 84 | low)).collect();
        let value = Bucket::encode(&incarnations);
        prop_assert_eq!(bucket.decode(&value), Ok(incarnations.clone()));
        let next = Bucket::of(TenantId(tenant), Incarnation(first ^ 1 << 84));
        prop_assert_eq!(next.decode(&value).is_ok(), incarnations.is_empty(), "the bits shared by row and bucket differ");
    }

    #[test]
    fn decoding_an_encoded_state_row_returns_the_same_row(schedule in schedule(), row in any::<u128>()) {
        let changed = Changed { state: Head::of(&schedule).state, row: Incarnation(row) };
        prop_assert_eq!(Changed::decode(&changed.encode()), Ok(changed));
    }

    #[test]
    fn decoded_journal_entry_contains_the_encoded_owner_writes(
        writes in vec((any::<u64>(), poller(), change()), 1..8)
    ) {
        let writes: Vec<_> = writes
            .into_iter()
            .map(|(term, poller, change)| OwnerWrite { term: Term(term), poller, change })
            .collect();
        let entry = one_entry(Kind::Write, |builder| writes.iter().for_each(|write| builder.write(write)));
        let mut reader = Reader::new(&entry).unwrap();
        prop_assert_eq!((reader.kind, reader.count as usize), (Kind::Write, writes.len()));
        for write in &writes {
            let WriteItem { term, poller, change } = reader.write().unwrap();
            prop_assert_eq!((term, poller), (write.term, write.poller));
            prop_assert!(same_change(&change, &write.change), "{:?} is not {:?}", change, write.change);
        }
        prop_assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn journal_entries_of_a_split_batch_contain_its_items_in_order(
        inserts in vec(insert(), 1..20), entry_len_max in 1..2000usize
    ) {
        let mut builder = Builder::new(Kind::Insert, entry_len_max);
        inserts.iter().for_each(|insert| builder.insert(insert));
        let mut left = inserts.iter();
        for entry in builder.finish() {
            let mut reader = Reader::new(&entry).unwrap();
            for _ in 0..reader.count {
                prop_assert!(same_insert(&reader.insert().unwrap(), left.next().unwrap()));
            }
            prop_assert_eq!(reader.end(), Ok(()));
        }
        prop_assert!(left.next().is_none());
    }

    #[test]
    fn decoded_single_item_journal_entry_contains_the_encoded_item(
        id in "[A-Za-z0-9_-]{1,128}", tenant in any::<u32>(), poller in poller(), due in due(), shard in any::<u16>(),
        author in option::of(author())
    ) {
        let mark = Cancellation { tenant: TenantId(tenant), id: ScheduleId::new(&id).unwrap(), author };
        let entry = one_entry(Kind::AuthoredCancellation, |builder| builder.cancellation(&mark));
        prop_assert_eq!(Reader::new(&entry).unwrap().cancellation(), Ok(mark.clone()));
        let entry = one_entry(Kind::Cancellation, |builder| builder.cancellation(&mark));
        prop_assert_eq!(Reader::new(&entry).unwrap().cancellation(), Ok(Cancellation { author: None, ..mark }));
        let entry = one_entry(Kind::Place, |builder| builder.place(poller, &due));
        prop_assert_eq!(Reader::new(&entry).unwrap().place(), Ok((poller, due)));
        let entry = one_entry(Kind::Rebuild, |builder| builder.place(poller, &due));
        prop_assert_eq!(Reader::new(&entry).unwrap().place(), Ok((poller, due)));
        let entry = one_entry(Kind::Take, |builder| builder.take(ShardId(shard)));
        prop_assert_eq!(Reader::new(&entry).unwrap().take(), Ok(ShardId(shard)));
    }

    #[test]
    fn decoded_journal_entry_contains_the_handed_over_attempts(
        attempts in vec((poller(), due(), timestamp()), 0..4), cut in any::<prop::sample::Index>()
    ) {
        let attempts = attempts.into_iter().map(|(poller, key, until)| HandedOver { poller, key, until }).collect();
        let list = HandOver { shard: ShardId(9), term: Term(8), attempts };
        let entry = one_entry(Kind::HandOver, |builder| builder.hand_over(&list));
        let read = Reader::new(&entry).unwrap().hand_over().unwrap();
        prop_assert_eq!((read.shard, read.term, &read.attempts), (list.shard, list.term, &list.attempts));
        prop_assert_eq!(hand_over::decode(read.value), Ok(list.attempts));
        let cut = cut.index(entry.len());
        prop_assert!(Reader::new(&entry[..cut]).and_then(|mut reader| reader.hand_over().map(|_| ())).is_err());
    }

    #[test]
    fn decoding_arbitrary_or_truncated_entry_never_panics(
        write in (any::<u64>(), poller(), change()),
        cut in any::<prop::sample::Index>(),
        noise in vec(any::<u8>(), 0..80),
    ) {
        let (term, poller, change) = write;
        let write = OwnerWrite { term: Term(term), poller, change };
        let entry = one_entry(Kind::Write, |builder| builder.write(&write));
        let cut = cut.index(entry.len());
        let read = Reader::new(&entry[..cut]).and_then(|mut reader| reader.write().map(|_| ()));
        prop_assert!(read.is_err());
        let bytes = Bytes::from(noise);
        let _any = tenant::take_first(&bytes);
        let _any = (Changed::decode(&bytes), Reader::new(&bytes).and_then(|mut reader| reader.write().map(|_| ())));
    }

    #[test]
    fn encoded_index_keys_sort_like_the_values_that_they_encode(
        a in (poller(), due(), occurrence()), b in (poller(), due(), occurrence()), tenant in any::<u32>()
    ) {
        prop_assert_eq!((a.0, a.1).cmp(&(b.0, b.1)), key::due(a.0, &a.1).cmp(&key::due(b.0, &b.1)));
        prop_assert_eq!(a.1.cmp(&b.1), key::due(a.0, &a.1).cmp(&key::due(a.0, &b.1)));
        prop_assert_eq!(a.2.cmp(&b.2), key::run(&a.2).cmp(&key::run(&b.2)));
        let tenant = TenantId(tenant);
        prop_assert_eq!(a.2.cmp(&b.2), key::dead_letter(tenant, &a.2).cmp(&key::dead_letter(tenant, &b.2)));
        prop_assert_eq!(key::parse_due(&key::due(a.0, &a.1)), Ok((a.0, a.1)));
        prop_assert_eq!(key::parse_dead_letter(&key::dead_letter(tenant, &a.2)), Ok((tenant, a.2)));
        prop_assert_eq!(key::parse_positions(&key::positions(a.0)), Ok(a.0));
    }

    #[test]
    fn key_range_of_a_scan_contains_the_keys_of_its_rows(
        of in poller(), due in due(), at in timestamp(), run in occurrence()
    ) {
        let key = key::due(of, &due);
        prop_assert_eq!(key.as_slice() >= key::due_after(of, at).as_slice(), due.position > at);
        prop_assert!(key.as_slice() < key::due_end(of).as_slice());
        let (from, to) = key::run_bounds(run.incarnation);
        prop_assert!(from.as_slice() <= &key::run(&run)[..] && &key::run(&run)[..] < to.as_slice());
        let (from, to) = key::dead_letter_bounds(of.tenant);
        let dead = key::dead_letter(of.tenant, &run);
        prop_assert!(from.as_slice() <= &dead[..] && &dead[..] < to.as_slice());
    }
}

fn an_occurrence() -> Occurrence {
    Occurrence {
        incarnation: Incarnation(0x0190_a1b2_c3d4_0000_1111_2222_3333_4444),
        nominal: Timestamp::from_millis(1_800_000_000_123),
        revision: Revision(5),
        replay: 1,
    }
}

fn a_due_key() -> DueKey {
    DueKey {
        position: Timestamp::from_millis(1_800_000_000_456),
        occurrence: an_occurrence(),
        attempt: 2,
        target: TargetKey(0xdead_beef),
    }
}

pub(crate) fn a_schedule() -> Schedule {
    Schedule {
        tenant: TenantId(7),
        id: ScheduleId::new("order-17").unwrap(),
        incarnation: an_occurrence().incarnation,
        poller: PollerId { tenant: TenantId(7), generation: 1, number: 2 },
        revision: Revision(5),
        status: Status::Active,
        created_at: Timestamp::from_millis(1_700_000_000_000),
        updated_at: Timestamp::from_millis(1_700_000_000_001),
        next: Some(an_occurrence().nominal),
        spec: Spec {
            when: When::every(Duration::from_millis(1500)),
            target: Target::Http(HttpTarget {
                url: "https://example.org/hook".to_owned(),
                method: "POST".to_owned(),
                headers: vec![("x-a".to_owned(), "b".into())],
                timeout: Duration::from_secs(10),
            }),
            payload: Bytes::from_static(b"{\"n\":1}"),
            labels: BTreeMap::from([("team".to_owned(), "blue".to_owned())]),
            retry: RetryPolicy {
                attempts_max: 3,
                backoff: Duration::from_secs(1),
                backoff_max: Duration::from_secs(60),
            },
        },
    }
}

fn a_run() -> Run {
    let attempt = |number, result| Attempt {
        number,
        started_at: Timestamp::from_millis(1_800_000_000_456),
        duration: Duration::from_millis(12),
        result,
        delay: None,
        excerpt: None,
    };
    Run {
        tenant: TenantId(7),
        occurrence: an_occurrence(),
        state: RunState::Missed { last: Timestamp::from_millis(1_800_000_009_000), count: 3, attempt_possible: false },
        attempts: vec![
            attempt(1, AttemptResult::Answered(503)),
            attempt(2, AttemptResult::Unreachable("refused".to_owned())),
            attempt(3, AttemptResult::TimedOut),
            attempt(4, AttemptResult::Panicked),
        ],
    }
}

fn a_tenant() -> Tenant {
    let mut tenant = Tenant::new(TenantId(7), "acme", 4, SigningSecret::first(vec![1; 24], Timestamp::from_millis(5)));
    tenant.generations.push(8);
    tenant.keys.push(ApiKey::admin("k1", [2; 32], Timestamp::from_millis(6)));
    tenant
}

/// The constants are a tenant row and a journal entry that a build without tenant versions wrote.
#[test]
fn decoder_reads_tenant_rows_of_earlier_builds() {
    const ROW: &str = "01070000000400000061636d6502000000040008001800000001010101010101010101010101010101010101010101010101000000020000006b31020202020202020202020202020202020202020202020202020202020202020200";
    const ENTRY: &str = "0104010000005c00000001070000000400000061636d6502000000040008001800000001010101010101010101010101010101010101010101010101000000020000006b31020202020202020202020202020202020202020202020202020202020202020200";
    let first = |tenant: Tenant| {
        let tenant = Tenant { version: 1, ..tenant };
        let secret =
            SigningSecret::first(tenant.signing_secrets[0].secret.plain().unwrap().to_vec(), Timestamp::from_millis(5));
        let keys = tenant.keys.iter().map(|key| ApiKey::admin(&key.id, key.secret_sha256, Timestamp::from_millis(6)));
        Tenant { keys: keys.collect(), signing_secrets: vec![secret], ..tenant }
    };
    let row = unhex(ROW);
    let key = key::tenant(TenantId(7));
    let read = tenant::take_row(&key, &row).unwrap();
    assert_eq!(read.version, 0);
    assert_eq!(first(read), a_tenant());
    let entry = unhex(ENTRY);
    let mut reader = Reader::new(&entry).unwrap();
    assert_eq!((reader.kind, reader.count), (Kind::PutTenant, 1));
    let (read, value) = reader.tenant().unwrap();
    assert_eq!((first(read), value), (a_tenant(), &*row));
    assert_eq!(tenant::take_row(&key, &stored::tenant::encode(&a_tenant())), Ok(a_tenant()));
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().filter(|digit| *digit != ' ').collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap()).collect()
}

/// The golden file contains one example of each form of bytes on disk, one on each line. The file never changes: a new
/// form gets a new version and a new file.
#[test]
fn encoded_bytes_match_golden_file_of_version_1() {
    let schedule = a_schedule();
    let changed = Changed { state: Head::of(&schedule).state, row: Incarnation(9) };
    let tenant = a_tenant();
    let audit = Audit::of(&tenant, Timestamp::from_millis(11), "k1", "key.create", "k2");
    let insert = Insert { schedule: schedule.clone().into(), due: a_due_key(), by: None };
    let poller = schedule.poller;
    let write = |change| OwnerWrite { term: Term(77), poller, change };
    let incarnation = schedule.incarnation;
    let revision = schedule.revision;
    let writes = [
        write(Change::Put(insert.clone())),
        write(Change::Cancel(incarnation)),
        write(Change::Run { run: a_run(), then: Some(a_due_key()), ends: true, origin: None }),
        write(Change::Advance { incarnation, revision, due: a_due_key() }),
        write(Change::End { incarnation, revision }),
        write(Change::Defer(a_due_key())),
        write(Change::Redrive { of: an_occurrence(), due: a_due_key() }),
        write(Change::Positions(Positions { closed: Timestamp::from_millis(9), done: Timestamp::from_millis(8) })),
    ];
    let conditional = [
        write(Change::PutIf { insert: insert.clone(), seen: None }),
        write(Change::PutIf { insert: insert.clone(), seen: Some(schedule.seen()) }),
        write(Change::PutIf { insert: insert.clone(), seen: Some(Precondition { next: None, ..schedule.seen() }) }),
        write(Change::CancelIf(schedule.edition(), None)),
    ];
    let mark = Cancellation { tenant: TenantId(7), id: schedule.id.clone(), author: None };
    let attempt = HandedOver { poller, key: a_due_key(), until: Timestamp::from_millis(10) };
    let hand_over = HandOver { shard: ShardId(5), term: Term(6), attempts: vec![attempt] };
    let checkpoint = crate::checkpoint::Checkpoint {
        index: crate::IndexKind::Lsm,
        epoch: 1_800_000_000,
        journal_id: Some(3),
        base: 4,
        synced: 5,
        is_listed: false,
        run_index: RunIndex::Missing,
        counted_from: None,
    };
    let lines = [
        ("schedule", encoded(|out| schedule::put(out, &schedule))),
        ("changed", changed.encode()),
        ("run", encoded(|out| run::put(out, &a_run()))),
        ("entry insert", one_entry(Kind::Insert, |builder| builder.insert(&insert))),
        ("entry place", one_entry(Kind::Place, |builder| builder.place(poller, &a_due_key()))),
        ("entry mark", one_entry(Kind::Cancellation, |builder| builder.cancellation(&mark))),
        ("entry take", one_entry(Kind::Take, |builder| builder.take(ShardId(5)))),
        ("entry hand over", one_entry(Kind::HandOver, |builder| builder.hand_over(&hand_over))),
        ("entry write", one_entry(Kind::Write, |builder| writes.iter().for_each(|write| builder.write(write)))),
        ("checkpoint", crate::file::envelope(&checkpoint.encode())),
        ("key row", key::row(incarnation).to_vec()),
        ("key due", key::due(poller, &a_due_key()).to_vec()),
        ("key id", key::id(TenantId(7), schedule.id.as_str())),
        ("key state", key::state(incarnation).to_vec()),
        ("key run", key::run(&an_occurrence()).to_vec()),
        ("key dead letter", key::dead_letter(TenantId(7), &an_occurrence()).to_vec()),
        ("key positions", key::positions(poller).to_vec()),
        ("key term", key::term(ShardId(5)).to_vec()),
        ("key handed over", key::handed_over(ShardId(5)).to_vec()),
        ("key tenant", key::tenant(TenantId(7)).to_vec()),
        ("key audit", key::audit(TenantId(7), 9).to_vec()),
        ("key usage", key::usage(TenantId(7)).to_vec()),
        ("entry change tenant", one_entry(Kind::ChangeTenant, |builder| builder.change_tenant(&tenant, &audit))),
        (
            "entry write with conditions",
            one_entry(Kind::Write, |builder| conditional.iter().for_each(|write| builder.write(write))),
        ),
    ];
    check_stored("stored-v1.txt", &lines);
}

/// This golden file contains the forms that version 2 added for listings.
#[test]
fn encoded_bytes_of_listings_match_golden_file_of_version_2() {
    let label = LabelKey::of("team", "blue");
    assert_eq!(label, LabelKey(0x349c_7fc3_ca19_4f29));
    let checkpoint = crate::checkpoint::Checkpoint {
        index: crate::IndexKind::Map,
        epoch: 1_800_000_000,
        journal_id: None,
        base: 4,
        synced: 5,
        is_listed: true,
        run_index: RunIndex::Missing,
        counted_from: None,
    };
    let incarnation = a_schedule().incarnation;
    let (bucket, next) = (Bucket::of(TenantId(7), incarnation), Incarnation(incarnation.0 + 1));
    let lines = [
        ("checkpoint", crate::file::envelope(&checkpoint.encode())),
        ("key list", bucket.key(9).to_vec()),
        ("key label", key::labelled(TenantId(7), label, incarnation).to_vec()),
        ("list", Bucket::encode(&BTreeSet::from([incarnation, next]))),
    ];
    check_stored("stored-v2.txt", &lines);
}

/// This golden file contains the forms that version 3 added for headers that the store encrypts again, and for rebuilt due
/// rows.
#[test]
fn encoded_bytes_of_new_entries_match_golden_file_of_version_3() {
    let mut schedule = a_schedule();
    let Target::Http(http) = &mut schedule.spec.target else { panic!("the target is an HTTP target") };
    http.headers = vec![("authorization".to_owned(), Secret::Encrypted(Bytes::from_static(&[7; 60])))];
    let poller = schedule.poller;
    let write = OwnerWrite { term: Term(77), poller, change: Change::Reencrypt(schedule.into()) };
    let lines = [
        ("entry write", one_entry(Kind::Write, |builder| builder.write(&write))),
        ("entry rebuild", one_entry(Kind::Rebuild, |builder| builder.place(poller, &a_due_key()))),
    ];
    check_stored("stored-v3.txt", &lines);
}

proptest! {
    #[test]
    fn row_that_lists_a_run_is_decoded_and_ordered_by_time(
        (run, other, tenant) in (run(), occurrence(), any::<u32>()),
        late in any::<bool>(),
    ) {
        let mut outline = RunOutline::of(&run);
        outline.lateness = late.then_some(Duration::from_millis(70));
        let (class, tenant, of) = (Class::of_first(&outline), TenantId(tenant), run.occurrence);
        let row = class.key(tenant, &of);
        prop_assert_eq!(timed::decode_key(&row), Ok(of));
        prop_assert_eq!(timed::decode(&timed::encode(&outline)), Ok(outline.clone()));
        prop_assert_eq!(key::parse_run(&key::run(&of)), Ok(of));
        prop_assert_eq!(row.cmp(&class.key(tenant, &other)), of.by_time().cmp(&other.by_time()));
        prop_assert!(class.from(tenant, of.nominal)[..] <= row[..]);
        let filter = RunFilter { state: Some(outline.state), status: outline.statuses.first().copied(), late_by: None };
        prop_assert!(Class::matching(&filter).any(|matching| matching == class));
    }
}

fn check_stored(file: &str, lines: &[(&str, Vec<u8>)]) {
    let found: String = lines.iter().map(|(name, bytes)| format!("{name}: {}\n", hex(bytes))).collect();
    let path = format!("{}/testdata/{file}", env!("CARGO_MANIFEST_DIR"));
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, known, "if this is a new form, give it a new version and a new file instead of {path}");
}
