use std::fmt::{Debug, Write as _};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[test]
fn encoding_of_version_1_never_changes() {
    check_golden(include_str!("../../testdata/golden/records-v1.txt"), &records());
    check_golden(include_str!("../../testdata/golden/messages-v1.txt"), &messages());
}

#[test]
fn decoder_returns_the_matching_error_for_invalid_bytes() {
    let read =
        |bytes: &'static [u8]| Record::decode(Bytes::from_static(bytes)).expect_err("the bytes are not a record");
    assert_eq!(read(&[]), DecodeError::Short);
    assert_eq!(read(&[2, 7, 3, 5]), DecodeError::Version(2));
    assert_eq!(read(&[1, 7, 9, 5]), DecodeError::Kind(9));
    assert_eq!(read(&[1, 7, 3, 5, 0]), DecodeError::Excess(1));
    // Each input has a number that is too large for its type: a paxos group id of 2^32, and a slot of 2^64.
    assert_eq!(read(&[1, 0x80, 0x80, 0x80, 0x80, 0x10, 3, 5]), DecodeError::TooLarge);
    assert_eq!(read(&[1, 7, 3, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2]), DecodeError::TooLarge);
    assert_eq!(read(&[1, 7, 2, 4, 0xff, 0xff, 0xff, 0xff, 0x0f]), DecodeError::Short);
    // The entry contains the members 2 and 1, which are not in ascending order.
    assert_eq!(read(&[1, 7, 2, 4, 1, 9, 1, 5, 2, 2, 1]), DecodeError::Order);
}

#[test]
fn decoder_does_not_copy_the_bytes_of_entries() {
    let large = Bytes::from(vec![7; 1_024]);
    let entry = Entry { ballot: ballot(3, 1), value: Value::Data(vec![large.clone(), large].into()) };
    let mut bytes = Vec::new();
    Record::Entries { after: Slot(4), entries: vec![entry] }.encode(GroupId(7), &mut bytes);
    let bytes = Bytes::from(bytes);

    let (_, record) = Record::decode(bytes.clone()).expect("the bytes were just encoded");
    let Record::Entries { entries, .. } = record else { panic!("the record has entries") };
    let Value::Data(batch) = &entries[0].value else { panic!("the entry has data") };
    for entry in batch.iter() {
        assert!(bytes.as_ptr_range().contains(&entry.as_ptr()), "an entry was copied");
    }
}

proptest! {
    #[test]
    fn decoding_an_encoded_record_returns_the_same_record(group in any_group(), record in any_record()) {
        let mut bytes = Vec::new();
        record.encode(group, &mut bytes);
        check_truncations(&bytes, Record::decode);
        prop_assert_eq!(Record::decode(bytes.into()), Ok((group, record)));
    }

    #[test]
    fn decoding_an_encoded_message_returns_the_same_message(group in any_group(), message in any_message()) {
        let mut bytes = Vec::new();
        message.encode(group, &mut bytes);
        check_truncations(&bytes, Message::decode);
        prop_assert_eq!(Message::decode(bytes.into()), Ok((group, message)));
    }

    /// If the decoder returns a value for random bytes, the test encodes this value and decodes it again. The result
    /// must be the same value.
    #[test]
    fn bytes_that_the_decoder_accepts_keep_their_value_in_a_round_trip(kind in 0..17_u8, mut rest in vec(prop_oneof![0..4_u8, any::<u8>()], 0..80)) {
        rest.splice(0..0, [VERSION, 7, kind]);
        let bytes = Bytes::from(rest);
        let mut again = Vec::new();
        if let Ok((group, record)) = Record::decode(bytes.clone()) {
            record.encode(group, &mut again);
            prop_assert_eq!(Record::decode(std::mem::take(&mut again).into()), Ok((group, record)));
        }
        if let Ok((group, message)) = Message::decode(bytes) {
            message.encode(group, &mut again);
            prop_assert_eq!(Message::decode(again.into()), Ok((group, message)));
        }
    }

    #[test]
    fn decoder_never_panics_on_damaged_records_or_messages(
        (record, message) in (any_record(), any_message()),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let (mut records, mut messages) = (Vec::new(), Vec::new());
        record.encode(GroupId(7), &mut records);
        message.encode(GroupId(7), &mut messages);
        for bytes in [&mut records, &mut messages] {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        drop(Record::decode(records.into()));
        drop(Message::decode(messages.into()));
    }
}

/// Compares the encodings of the examples with a golden file. Each line of the file contains the name of an example and
/// the bytes of its encoding. A developer appends a line for a new kind, and never changes existing lines.
fn check_golden<T: Coded + Debug + PartialEq>(golden: &str, examples: &[(&str, T)]) {
    let mut lines = String::new();
    for (name, example) in examples {
        let mut bytes = Vec::new();
        encode(example, GroupId(300), &mut bytes);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(lines, "{name} {hex}").expect("a string can grow");
        let (group, decoded) = decode::<T>(bytes.into()).expect("the bytes were just encoded");
        assert_eq!((group, &decoded), (GroupId(300), example));
    }
    assert_eq!(lines, golden, "the encoding of stored and sent bytes has changed");
}

fn check_truncations<T: Debug + PartialEq>(bytes: &[u8], decode: impl Fn(Bytes) -> Result<(GroupId, T), DecodeError>) {
    for len in 0..bytes.len() {
        assert_eq!(decode(Bytes::copy_from_slice(&bytes[..len])), Err(DecodeError::Short), "cut to {len} bytes");
    }
}

fn ballot(round: u64, node: u32) -> Ballot {
    Ballot { round, node: NodeId(node) }
}

fn term() -> Term {
    Term { epoch: Epoch(6), ballot: ballot(9, 2) }
}

fn state() -> GroupState {
    let shortened = Some(Shortened { to: NodeId(3), remaining: Duration::from_millis(500) });
    let (node, lease_slot) = (Some(NodeId(2)), Slot(40));
    let mastership = Mastership { term: term(), node, liveness: 11, lease_slot, shortened };
    GroupState { mastership, members: vec![NodeId(1), NodeId(2), NodeId(3)].into() }
}

fn entries() -> Vec<Entry> {
    let term = term();
    let members = || Arc::from([NodeId(1), NodeId(2)]);
    let be_master = |claim| Value::BeMaster(BeMaster { node: NodeId(2), liveness: 11, claim, members: members() });
    let batch = vec![Bytes::from_static(b"one"), Bytes::new(), Bytes::from_static(b"three")];
    let values = [
        Value::Noop,
        Value::Data(batch.into()),
        be_master(Claim::Waited { term, lease_slot: Slot(40) }),
        be_master(Claim::Own { term }),
        be_master(Claim::Consent { term }),
        Value::Shorten(Shorten { term, to: NodeId(3), remaining: Duration::from_millis(500) }),
        Value::Members(vec![NodeId(1), NodeId(4)].into()),
    ];
    values.into_iter().map(|value| Entry { ballot: ballot(10, 2), value }).collect()
}

fn records() -> [(&'static str, Record); 5] {
    let (position, application) = (Position { ballot: ballot(9, 2), slot: Slot(41) }, Bytes::from_static(b"state"));
    let no_master = GroupState::new(&[NodeId(1)]);
    [
        ("promise", Record::Promise(ballot(u64::MAX, u32::MAX))),
        ("entries", Record::Entries { after: Slot(41), entries: entries() }),
        ("decided", Record::Decided(Slot(128))),
        ("snapshot", Record::Snapshot(Snapshot { position, state: state(), application: application.clone() })),
        ("snapshot-nobodys", Record::Snapshot(Snapshot { position, state: no_master, application })),
    ]
}

fn messages() -> [(&'static str, Message); 19] {
    let (ballot, promised, term) = (ballot(10, 2), ballot(12, 3), term());
    let (after, slot, offset) = (Position { ballot: promised, slot: Slot(41) }, Slot(42), 1 << 20);
    let (expired, consent) =
        (MastershipEnd::Expired { term, node: NodeId(2), liveness: 11 }, MastershipEnd::Consent { term });
    let (head, part) = (SnapshotHead { position: after, state: state(), len: 5 }, Bytes::from_static(b"ate"));
    let idle = Duration::from_micros(5_001_002);
    let (process, stamp, fence) = (1 << 60, Instant(77), Fence(4));
    let members = vec![(NodeId(1), 0), (NodeId(3), 200)];
    let serves = vec![Serving { group: GroupId(5), epoch: Epoch(6), members }];
    let prepared = Some((fence, Preparation::NotifyProducers));
    let of = Move { fence, group: GroupId(5), from: NodeId(1), to: NodeId(3), epoch: Epoch(6) };
    let orders = |step| Message::Orders(Orders { process, stamp, of, step, within: idle });
    [
        ("prepare", Message::Prepare { ballot, pre_vote: false, over: MastershipEnd::Waited { term } }),
        ("prepare-expired", Message::Prepare { ballot, pre_vote: true, over: expired }),
        ("prepare-consent", Message::Prepare { ballot, pre_vote: true, over: consent }),
        ("promise", Message::Promise { ballot, pre_vote: true, last: after, idle }),
        ("refuse", Message::Reject { ballot, promised }),
        ("pull", Message::Pull { ballot, after, offset }),
        ("pulled", Message::Pulled { ballot, after, entries: entries() }),
        ("accept", Message::Accept { ballot, after, entries: entries(), decided: slot }),
        ("accepted", Message::Accepted { ballot, slot, decided: Slot(slot.0 - 1) }),
        ("gap", Message::Gap { ballot, slot }),
        ("snapshot", Message::Snapshot { ballot, head, offset: 2, part }),
        ("received", Message::Received { ballot, slot, offset }),
        ("ask", Message::RequestConsent { term }),
        ("consent", Message::Consent { term, taker: NodeId(3) }),
        ("decline", Message::Decline { term }),
        ("forward", Message::Forward { entry: Bytes::from_static(b"one") }),
        (
            "report",
            Message::Report(Report {
                process,
                stamp,
                serves,
                prepared,
                rejected: Some((fence, Step::Handover(Scheme::Consent))),
            }),
        ),
        ("orders-prepare", orders(Step::Prepare(Preparation::SyncOffsets))),
        ("orders-handover", orders(Step::Handover(Scheme::Wait))),
    ]
}

/// Draws small numbers as often as numbers of the whole range, so that the tests cover short encodings, too.
fn any_number() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![0..200_u64, any::<u64>()]
}

fn any_group() -> impl Strategy<Value = GroupId> {
    any::<u32>().prop_map(GroupId)
}

fn any_node() -> impl Strategy<Value = NodeId> + Clone {
    prop_oneof![0..5_u32, any::<u32>()].prop_map(NodeId)
}

fn any_slot() -> impl Strategy<Value = Slot> + Clone {
    any_number().prop_map(Slot)
}

fn any_ballot() -> impl Strategy<Value = Ballot> + Clone {
    (any_number(), any_node()).prop_map(|(round, node)| Ballot { round, node })
}

fn any_term() -> impl Strategy<Value = Term> + Clone {
    (any_number(), any_ballot()).prop_map(|(epoch, ballot)| Term { epoch: Epoch(epoch), ballot })
}

fn any_position() -> impl Strategy<Value = Position> {
    (any_ballot(), any_slot()).prop_map(|(ballot, slot)| Position { ballot, slot })
}

fn any_duration() -> impl Strategy<Value = Duration> + Clone {
    any_number().prop_map(Duration::from_nanos)
}

fn any_bytes() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn any_members() -> impl Strategy<Value = Arc<[NodeId]>> {
    prop::collection::btree_set(any_node(), 0..6).prop_map(|members| members.into_iter().collect())
}

fn any_entries() -> impl Strategy<Value = Vec<Entry>> {
    let claim = prop_oneof![
        (any_term(), any_slot()).prop_map(|(term, lease_slot)| Claim::Waited { term, lease_slot }),
        any_term().prop_map(|term| Claim::Own { term }),
        any_term().prop_map(|term| Claim::Consent { term }),
    ];
    let value = prop_oneof![
        Just(Value::Noop),
        vec(any_bytes(), 0..4).prop_map(|batch| Value::Data(batch.into())),
        (any_node(), any_number(), claim, any_members()).prop_map(|(node, liveness, claim, members)| {
            Value::BeMaster(BeMaster { node, liveness, claim, members })
        }),
        (any_term(), any_node(), any_duration()).prop_map(|(term, to, remaining)| Value::Shorten(Shorten {
            term,
            to,
            remaining
        })),
        any_members().prop_map(Value::Members),
    ];
    vec((any_ballot(), value).prop_map(|(ballot, value)| Entry { ballot, value }), 0..4)
}

fn any_state() -> impl Strategy<Value = GroupState> {
    let shortened = (any_node(), any_duration()).prop_map(|(to, remaining)| Shortened { to, remaining });
    let (node, shortened) = (prop::option::of(any_node()), prop::option::of(shortened));
    (any_term(), node, any_number(), any_slot(), shortened, any_members()).prop_map(
        |(term, node, liveness, lease_slot, shortened, members)| {
            let mastership = Mastership { term, node, liveness, lease_slot, shortened };
            GroupState { mastership, members }
        },
    )
}

fn any_record() -> impl Strategy<Value = Record> {
    prop_oneof![
        any_ballot().prop_map(Record::Promise),
        (any_slot(), any_entries()).prop_map(|(after, entries)| Record::Entries { after, entries }),
        any_slot().prop_map(Record::Decided),
        (any_position(), any_state(), any_bytes())
            .prop_map(|(position, state, application)| { Record::Snapshot(Snapshot { position, state, application }) }),
    ]
}

fn any_message() -> impl Strategy<Value = Message> {
    let over = prop_oneof![
        any_term().prop_map(|term| MastershipEnd::Waited { term }),
        (any_term(), any_node(), any_number()).prop_map(|(term, node, liveness)| MastershipEnd::Expired {
            term,
            node,
            liveness
        }),
        any_term().prop_map(|term| MastershipEnd::Consent { term }),
    ];
    let head = (any_position(), any_state(), any_number());
    let head = head.prop_map(|(position, state, len)| SnapshotHead { position, state, len });
    prop_oneof![
        (any_ballot(), any::<bool>(), over).prop_map(|(ballot, pre_vote, over)| Message::Prepare {
            ballot,
            pre_vote,
            over
        }),
        (any_ballot(), any::<bool>(), any_position(), any_duration())
            .prop_map(|(ballot, pre_vote, last, idle)| Message::Promise { ballot, pre_vote, last, idle }),
        (any_ballot(), any_ballot()).prop_map(|(ballot, promised)| Message::Reject { ballot, promised }),
        (any_ballot(), any_position(), any_number()).prop_map(|(ballot, after, offset)| Message::Pull {
            ballot,
            after,
            offset
        }),
        (any_ballot(), any_position(), any_entries()).prop_map(|(ballot, after, entries)| Message::Pulled {
            ballot,
            after,
            entries
        }),
        (any_ballot(), any_position(), any_entries(), any_slot())
            .prop_map(|(ballot, after, entries, decided)| Message::Accept { ballot, after, entries, decided }),
        (any_ballot(), any_slot(), any_slot()).prop_map(|(ballot, slot, decided)| Message::Accepted {
            ballot,
            slot,
            decided
        }),
        (any_ballot(), any_slot()).prop_map(|(ballot, slot)| Message::Gap { ballot, slot }),
        (any_ballot(), head, any_number(), any_bytes()).prop_map(|(ballot, head, offset, part)| Message::Snapshot {
            ballot,
            head,
            offset,
            part
        }),
        (any_ballot(), any_slot(), any_number()).prop_map(|(ballot, slot, offset)| Message::Received {
            ballot,
            slot,
            offset
        }),
        any_term().prop_map(|term| Message::RequestConsent { term }),
        (any_term(), any_node()).prop_map(|(term, taker)| Message::Consent { term, taker }),
        any_term().prop_map(|term| Message::Decline { term }),
        any_bytes().prop_map(|entry| Message::Forward { entry }),
        any_report().prop_map(Message::Report),
        any_orders().prop_map(Message::Orders),
    ]
}

fn any_fence() -> impl Strategy<Value = Fence> + Clone {
    any_number().prop_map(Fence)
}

fn any_preparation() -> impl Strategy<Value = Preparation> + Clone {
    prop_oneof![Just(Preparation::SyncOffsets), Just(Preparation::NotifyProducers)]
}

fn any_report() -> impl Strategy<Value = Report> {
    let members = vec((any_node(), any_number()), 0..6);
    let serving = (any_group(), any_number(), members);
    let serving = serving.prop_map(|(group, epoch, members)| Serving { group, epoch: Epoch(epoch), members });
    let prepared = prop::option::of((any_fence(), any_preparation()));
    (any_number(), any_number(), vec(serving, 0..4), prepared, prop::option::of((any_fence(), any_step()))).prop_map(
        |(process, stamp, serves, prepared, rejected)| Report {
            process,
            stamp: Instant(stamp),
            serves,
            prepared,
            rejected,
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    let scheme = prop_oneof![Just(Scheme::Consent), Just(Scheme::Shorten), Just(Scheme::Wait)];
    prop_oneof![any_preparation().prop_map(Step::Prepare), scheme.prop_map(Step::Handover)]
}

fn any_orders() -> impl Strategy<Value = Orders> {
    let step = any_step();
    let of = (any_fence(), any_group(), any_node(), any_node(), any_number());
    let of = of.prop_map(|(fence, group, from, to, epoch)| Move { fence, group, from, to, epoch: Epoch(epoch) });
    (any_number(), any_number(), of, step, any_duration()).prop_map(|(process, stamp, of, step, within)| Orders {
        process,
        stamp: Instant(stamp),
        of,
        step,
        within,
    })
}
