use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const L: NodeId = NodeId(300);

fn join(node: NodeId, liveness: u64, stamp: u64) -> Record {
    Record::Join { node, liveness, incarnation: 1000 + liveness, stamp: Instant(stamp) }
}

fn alive(node: NodeId, liveness: u64, last: u64, stamp: u64) -> Record {
    Record::Alive { node, liveness, last: Slot(last), stamp: Instant(stamp) }
}

fn expire(node: NodeId, liveness: u64, last: u64) -> Record {
    Record::Expire { node, liveness, last: Slot(last) }
}

fn take(holder: NodeId, fence: u64, slot: u64) -> Record {
    Record::TokenTake(Take {
        precondition: (Fence(fence), Slot(slot)),
        holder,
        liveness: 1,
        group: GroupId(7),
        from: A,
        to: B,
        epoch: Epoch(4),
        stamp: Instant(50),
    })
}

fn step(fence: u64, step: Step, stamp: u64) -> Record {
    Record::TokenStep { fence: Fence(fence), step, stamp: Instant(stamp) }
}

/// Applies each record at the next slot. Returns one line per record, with the record's outcome.
fn apply_all(system: &mut System, records: &[Record]) -> String {
    let mut lines = String::new();
    for record in records {
        let slot = system.applied.next();
        let outcome = system.apply(slot, record);
        lines += &format!("{slot} {record:?}: {outcome:?}\n");
    }
    lines
}

fn check(records: &[Record], expected: &Expect) {
    expected.assert_eq(&apply_all(&mut System::default(), records));
}

/// Returns a system in which A and B are alive in liveness epoch 1 and are the replicas of paxos group 7.
fn two_nodes() -> System {
    let mut system = System::default();
    let node = |node| Record::Node { node, capacity: 10 };
    let group = Record::Group { group: GroupId(7), replicas: vec![A, B] };
    apply_all(&mut system, &[node(A), node(B), join(A, 1, 5), join(B, 1, 6), group]);
    system
}

#[test]
fn node_stays_alive_by_renewing_its_liveness_epoch() {
    check(
        &[
            join(A, 1, 5),
            Record::Node { node: A, capacity: 10 },
            alive(A, 0, 0, 5),
            join(A, 1, 6),
            alive(A, 1, 4, 9),
            alive(A, 1, 5, 8),
            alive(A, 1, 4, 10),
            alive(A, 2, 5, 10),
            expire(A, 1, 4),
            expire(A, 1, 5),
            alive(A, 1, 5, 20),
            expire(A, 1, 5),
            join(A, 1, 21),
            join(A, 2, 22),
            alive(A, 2, 14, 30),
            join(A, 4, 40),
        ],
        &expect![[r#"
            1 Join { node: NodeId(1), liveness: 1, incarnation: 1001, stamp: Instant(5) }: Unknown
            2 Node { node: NodeId(1), capacity: 10 }: Applied
            3 Alive { node: NodeId(1), liveness: 0, last: Slot(0), stamp: Instant(5) }: Stale
            4 Join { node: NodeId(1), liveness: 1, incarnation: 1001, stamp: Instant(6) }: Applied
            5 Alive { node: NodeId(1), liveness: 1, last: Slot(4), stamp: Instant(9) }: Applied
            6 Alive { node: NodeId(1), liveness: 1, last: Slot(5), stamp: Instant(8) }: Stale
            7 Alive { node: NodeId(1), liveness: 1, last: Slot(4), stamp: Instant(10) }: Stale
            8 Alive { node: NodeId(1), liveness: 2, last: Slot(5), stamp: Instant(10) }: Stale
            9 Expire { node: NodeId(1), liveness: 1, last: Slot(4) }: Stale
            10 Expire { node: NodeId(1), liveness: 1, last: Slot(5) }: Applied
            11 Alive { node: NodeId(1), liveness: 1, last: Slot(5), stamp: Instant(20) }: Stale
            12 Expire { node: NodeId(1), liveness: 1, last: Slot(5) }: Stale
            13 Join { node: NodeId(1), liveness: 1, incarnation: 1001, stamp: Instant(21) }: Stale
            14 Join { node: NodeId(1), liveness: 2, incarnation: 1002, stamp: Instant(22) }: Applied
            15 Alive { node: NodeId(1), liveness: 2, last: Slot(14), stamp: Instant(30) }: Applied
            16 Join { node: NodeId(1), liveness: 4, incarnation: 1004, stamp: Instant(40) }: Stale
        "#]],
    );
}

impl System {
    /// Returns true if the system group has decided that this liveness epoch is over.
    fn is_expired(&self, node: NodeId, liveness: u64) -> bool {
        self.node(node).is_some_and(|node| (node.liveness, node.alive.is_none()) >= (liveness, true))
    }
}

#[test]
fn expiry_or_a_later_epoch_ends_a_liveness_epoch() {
    let mut system = two_nodes();
    assert!(!system.is_expired(A, 1) && system.is_alive(A));
    apply_all(&mut system, &[expire(A, 1, 3)]);
    assert!(system.is_expired(A, 1) && !system.is_alive(A));
    assert!(!system.is_expired(A, 2), "an epoch that no process took up is not over");
    apply_all(&mut system, &[join(A, 2, 1), join(B, 2, 1)]);
    assert!(system.is_expired(A, 1) && system.is_expired(B, 1) && system.is_alive(A));
    assert!(!system.is_expired(NodeId(9), 1), "an unknown node has no expired epoch");
}

#[test]
fn system_group_grants_one_token_at_a_time_with_increasing_fences() {
    let mut system = two_nodes();
    let lines = [
        take(A, 0, 0),
        take(B, 0, 0),
        take(B, 1, 0),
        step(1, Step::Handover(Scheme::Consent), 60),
        step(1, Step::FIRST, 55),
        take(B, 1, 6),
        take(B, 1, 9),
        step(1, Step::FIRST, 70),
        Record::TokenEnd { fence: Fence(1) },
        Record::TokenEnd { fence: Fence(2) },
        Record::TokenEnd { fence: Fence(2) },
        take(A, 1, 0),
        take(A, 2, 0),
    ];
    let mut outcomes = String::new();
    for record in &lines {
        let slot = system.applied.next();
        let outcome = system.apply(slot, record);
        let token = system.token().map(|token| (token.fence.0, token.holder.0, token.step, token.last.0));
        outcomes += &format!("{slot} {outcome:?} {token:?}\n");
    }
    expect![[r#"
        6 Applied Some((1, 1, Prepare(SyncOffsets), 6))
        7 Stale Some((1, 1, Prepare(SyncOffsets), 6))
        8 Stale Some((1, 1, Prepare(SyncOffsets), 6))
        9 Applied Some((1, 1, Handover(Consent), 9))
        10 Stale Some((1, 1, Handover(Consent), 9))
        11 Stale Some((1, 1, Handover(Consent), 9))
        12 Applied Some((2, 2, Prepare(SyncOffsets), 12))
        13 Stale Some((2, 2, Prepare(SyncOffsets), 12))
        14 Stale Some((2, 2, Prepare(SyncOffsets), 12))
        15 Applied None
        16 Stale None
        17 Stale None
        18 Applied Some((3, 1, Prepare(SyncOffsets), 18))
    "#]]
    .assert_eq(&outcomes);
}

#[test]
fn process_with_an_outdated_liveness_epoch_cannot_take_the_token() {
    let mut system = two_nodes();
    apply_all(&mut system, &[join(A, 2, 1), expire(B, 1, 4)]);
    assert_eq!(system.apply(Slot(8), &take(A, 0, 0)), RecordOutcome::Stale);
    assert_eq!(system.apply(Slot(9), &take(B, 0, 0)), RecordOutcome::Stale);
    assert_eq!(system.apply(Slot(10), &take(L, 0, 0)), RecordOutcome::Unknown);
    assert_eq!(system.token(), None);
}

#[test]
fn weigh_record_sets_only_the_weights_of_known_paxos_groups() {
    let mut system = two_nodes();
    let weigh = Record::Weigh { weights: vec![(GroupId(8), 1), (GroupId(7), 99)] };
    assert_eq!(system.apply(Slot(6), &weigh), RecordOutcome::Unknown);
    assert_eq!(system.groups()[&GroupId(7)].weight, 99);
    let place = Record::Group { group: GroupId(7), replicas: vec![A, L] };
    assert_eq!(system.apply(Slot(7), &place), RecordOutcome::Unknown);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// Disks contain bytes of this encoding, so a change of the encoding requires a new version.
#[test]
fn record_encoding_never_changes() {
    let records = [
        Record::Node { node: L, capacity: 100_000 },
        Record::Drain { node: A, draining: true },
        Record::Group { group: GroupId(7), replicas: vec![A, B, L] },
        Record::Weigh { weights: vec![(GroupId(7), u64::MAX), (GroupId(8), 0)] },
        Record::Join { node: A, liveness: 3, incarnation: u64::MAX, stamp: Instant(1_000_000) },
        alive(A, 3, 1_000, 2_000_000),
        expire(A, 3, 130),
        take(A, 9, 127),
        step(10, Step::Prepare(Preparation::NotifyProducers), 1),
        step(10, Step::Handover(Scheme::Consent), 2),
        step(10, Step::Handover(Scheme::Shorten), 3),
        step(10, Step::Handover(Scheme::Wait), 4),
        Record::TokenEnd { fence: Fence(10) },
    ];
    let bytes: String = records.iter().map(|record| hex(&record.encode()) + "\n").collect();
    expect![[r#"
        0101ac02a08d06
        01020101
        010307030102ac02
        01040207ffffffffffffffffff010800
        01050103ffffffffffffffffff01c0843d
        01060103e80780897a
        010701038201
        0108097f01010701020432
        01090a0201
        01090a0502
        01090a0403
        01090a0304
        010a0a
    "#]]
    .assert_eq(&bytes);
}

#[test]
fn snapshot_encoding_never_changes() {
    let mut system = two_nodes();
    let drain = Record::Drain { node: B, draining: true };
    apply_all(&mut system, &[alive(A, 1, 3, 300), take(A, 0, 0), expire(B, 1, 4), drain]);
    expect!["01090102010a0001e907ac0206020a0101e90706000107000201020101010107010204013207"]
        .assert_eq(&hex(&system.snapshot()));
    assert_eq!(System::restore(&System::default().snapshot()), Ok(System::default()));
}

#[test]
fn decoder_rejects_each_invalid_record_with_its_own_error() {
    let decode = |bytes: &[u8]| Record::decode(bytes).unwrap_err();
    assert_eq!(decode(&[]), DecodeError::Short);
    assert_eq!(decode(&[2, 10, 1]), DecodeError::Version(2));
    assert_eq!(decode(&[1, 99]), DecodeError::Unknown { what: "record", number: 99 });
    assert_eq!(decode(&[1, 9, 1, 6, 1]), DecodeError::Unknown { what: "step", number: 6 });
    assert_eq!(decode(&[1, 10]), DecodeError::Short);
    assert_eq!(decode(&[1, 3, 1, 0xff, 0xff, 3, 1]), DecodeError::Short);
    assert_eq!(decode(&[1, 2, 1, 2]), DecodeError::Range);
    assert_eq!(decode(&[1, 1, 0xff, 0xff, 0xff, 0xff, 0x1f, 1]), DecodeError::Range);
    assert_eq!(decode(&[1, 10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]), DecodeError::Range);
    assert_eq!(decode(&[1, 10, 1, 0]), DecodeError::Form);
    assert_eq!(decode(&[1, 10, 0x81, 0]), DecodeError::Form);
    // The decoder rejects numbers of 2^62 or more in fields that the state machine increments later. These fields are
    // the last slot, the last fence, the liveness epoch and slot of a node, and the fence and slot of the token.
    let (far, near) = ([&[0x80; 8][..], &[0x40]].concat(), vec![1]);
    for index in 0..6 {
        let [applied, fence, liveness, alive, token, last] =
            std::array::from_fn(|place| if place == index { &far[..] } else { &near[..] });
        let node = [&[1, 1, 1, 0], liveness, &[1, 1], alive].concat();
        let token = [&[1], token, &[1, 1, 1, 1, 1, 1, 1, 1], last].concat();
        let bytes = [&[1], applied, fence, &node, &[0], &token].concat();
        assert_eq!(System::restore(&bytes).unwrap_err(), DecodeError::Range, "{index}");
    }
}

#[test]
#[should_panic(expected = "slot 1 is applied after 1")]
fn applying_a_slot_twice_panics() {
    let mut system = System::default();
    system.apply(Slot(1), &alive(A, 1, 0, 1));
    system.apply(Slot(1), &alive(A, 1, 0, 1));
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        prop_oneof![Just(Preparation::SyncOffsets), Just(Preparation::NotifyProducers)].prop_map(Step::Prepare),
        prop_oneof![Just(Scheme::Wait), Just(Scheme::Shorten), Just(Scheme::Consent)].prop_map(Step::Handover),
    ]
}

/// Returns a `proptest` strategy that generates random records. Most records name one of a few nodes and contain small
/// numbers. Therefore many of the records are not stale.
fn records() -> impl Strategy<Value = Record> {
    let number = || prop_oneof![9 => 0..6_u64, 1 => any::<u64>()];
    let node = || prop_oneof![9 => 0..4_u32, 1 => any::<u32>()].prop_map(NodeId);
    let group = || prop_oneof![9 => 0..3_u32, 1 => any::<u32>()].prop_map(GroupId);
    let take = ((number(), number()), node(), number(), group(), (node(), node()), number(), number()).prop_map(
        |((fence, slot), holder, liveness, group, (from, to), epoch, stamp)| {
            let precondition = (Fence(fence), Slot(slot));
            let (epoch, stamp) = (Epoch(epoch), Instant(stamp));
            Record::TokenTake(Take { precondition, holder, liveness, group, from, to, epoch, stamp })
        },
    );
    prop_oneof![
        (node(), any::<u32>()).prop_map(|(node, capacity)| Record::Node { node, capacity }),
        (node(), any::<bool>()).prop_map(|(node, draining)| Record::Drain { node, draining }),
        (group(), prop::collection::vec(node(), 0..4)).prop_map(|(group, replicas)| Record::Group { group, replicas }),
        prop::collection::vec((group(), number()), 0..4).prop_map(|weights| Record::Weigh { weights }),
        (node(), number(), any::<u64>(), number()).prop_map(|(node, liveness, incarnation, stamp)| Record::Join {
            node,
            liveness,
            incarnation,
            stamp: Instant(stamp)
        }),
        (node(), number(), number(), number())
            .prop_map(|(node, liveness, last, stamp)| alive(node, liveness, last, stamp)),
        (node(), number(), number()).prop_map(|(node, liveness, last)| expire(node, liveness, last)),
        take,
        (number(), steps(), number()).prop_map(|(fence, to, stamp)| step(fence, to, stamp)),
        number().prop_map(|fence| Record::TokenEnd { fence: Fence(fence) }),
    ]
}

proptest! {
    #[test]
    fn decoding_an_encoded_record_returns_the_same_record(record in records()) {
        prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn system_state_restored_from_a_snapshot_behaves_like_the_original(
        before in prop::collection::vec(records(), 0..60), after in prop::collection::vec(records(), 0..20),
    ) {
        let mut system = System::default();
        apply_all(&mut system, &before);
        let mut restored = System::restore(&system.snapshot()).unwrap();
        prop_assert_eq!(&restored, &system);
        prop_assert_eq!(apply_all(&mut restored, &after), apply_all(&mut system, &after));
        prop_assert_eq!(restored.snapshot(), system.snapshot());
    }

    #[test]
    fn encoder_reproduces_the_bytes_that_the_decoder_accepts(bytes in prop::collection::vec(prop_oneof![0..12_u8, any::<u8>()], 0..60)) {
        for version in [&[][..], &[1]] {
            let bytes = [version, &bytes].concat();
            if let Ok(record) = Record::decode(&bytes) {
                prop_assert_eq!(record.encode(), bytes.clone());
            }
            if let Ok(system) = System::restore(&bytes) {
                prop_assert_eq!(system.snapshot(), bytes);
            }
        }
    }

    #[test]
    fn decoder_rejects_truncated_records(record in records(), cut in any::<prop::sample::Index>()) {
        let bytes = record.encode();
        prop_assert!(Record::decode(&bytes[..cut.index(bytes.len())]).is_err());
    }

    #[test]
    fn fences_and_epochs_only_increase_and_expiry_is_permanent(
        records in prop::collection::vec(records(), 0..100),
    ) {
        let mut system = System::default();
        for record in &records {
            let before = system.clone();
            let outcome = system.apply(before.applied.next(), record);
            prop_assert!(system.fence >= before.fence);
            if system.token.is_some() && before.token.is_none() {
                prop_assert!(system.fence > before.fence);
            }
            for (id, node) in &before.nodes {
                prop_assert!(system.nodes[id].liveness >= node.liveness);
                prop_assert!(!before.is_expired(*id, node.liveness) || system.is_expired(*id, node.liveness));
            }
            if outcome == RecordOutcome::Stale {
                prop_assert_eq!(&System { applied: before.applied, ..system.clone() }, &before);
            }
        }
    }
}
