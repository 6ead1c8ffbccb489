use expect_test::{Expect, expect};

use super::*;

mod chaos;

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);

/// One mover on node A, the master of the system group. The harness decides proposals at once, unless a test disables
/// decisions.
struct Harness {
    mover: Mover,
    now: Instant,
    system: System,
    slot: Slot,
    groups: BTreeMap<GroupId, Facts>,
    reachable: BTreeSet<NodeId>,
    masters_system: bool,
    decides: bool,
}

impl Harness {
    /// Returns a harness with three nodes. The paxos groups 1, 2 and so on have the nodes in `masters` as their
    /// masters, in this order.
    fn new(masters: &[NodeId]) -> Harness {
        let mut harness = Harness {
            mover: Mover::new(Options::default(), Deviation::default()),
            now: Instant(1_000_000),
            system: System::default(),
            slot: Slot(0),
            groups: BTreeMap::new(),
            reachable: BTreeSet::from([A, B, C]),
            masters_system: true,
            decides: true,
        };
        for node in [A, B, C] {
            harness.decide(&Record::Node { node, capacity: 1 });
            harness.decide(&Record::Join { node, liveness: 1, incarnation: 7, stamp: Instant(1) });
        }
        for (group, master) in (1..).map(GroupId).zip(masters) {
            harness.decide(&Record::Group { group, replicas: vec![A, B, C] });
            let lag = BTreeMap::from([(A, 0), (B, 0), (C, 0)]);
            harness.groups.insert(group, Facts { master: Some((*master, Epoch(5))), lag });
        }
        harness
    }

    fn decide(&mut self, record: &Record) {
        self.slot = self.slot.next();
        self.system.apply(self.slot, record);
    }

    fn handle(&mut self, input: Input) -> Vec<Action> {
        let view = View {
            me: A,
            liveness: 1,
            masters_system: self.masters_system,
            system: &self.system,
            groups: &self.groups,
            reachable: &self.reachable,
        };
        let actions = self.mover.step(self.now, &view, input);
        for action in &actions {
            if let Action::Propose(record) = action
                && self.decides
            {
                self.decide(record);
            }
        }
        actions
    }

    /// Sends ten ticks per second to the mover for `millis` milliseconds. Returns the mover's actions with their times.
    fn pass(&mut self, millis: u64) -> String {
        let end = self.now + Duration::from_millis(millis);
        let mut output = String::new();
        while self.now < end {
            output += &self.describe(Input::Tick);
            self.now = self.now + Duration::from_millis(100);
        }
        output
    }

    fn describe(&mut self, input: Input) -> String {
        let at = self.now.0 / 100_000;
        self.handle(input).iter().map(|action| format!("{}.{} {}\n", at / 10, at % 10, show(action))).collect()
    }

    fn prepared(&mut self, fence: u64, what: Preparation) -> String {
        self.describe(Input::Prepared { fence: Fence(fence), what })
    }

    fn master(&mut self, group: u32, node: NodeId, epoch: u64) {
        self.groups.get_mut(&GroupId(group)).unwrap().master = Some((node, Epoch(epoch)));
    }

    /// Runs the move with the fence `fence` up to the beginning of its hand-over.
    fn prepare(&mut self, fence: u64) {
        self.pass(300);
        self.prepared(fence, Preparation::SyncOffsets);
        self.pass(200);
        self.prepared(fence, Preparation::NotifyProducers);
    }
}

fn show(action: &Action) -> String {
    let of = |of: &Move| format!("{}: {} {} -> {}", of.fence.0, of.group, of.from, of.to);
    match action {
        Action::Propose(Record::TokenTake(take)) => {
            format!(
                "propose take {} over {} {}: {} {} -> {}",
                take.precondition.0.0 + 1,
                take.precondition.1,
                take.holder,
                take.group,
                take.from,
                take.to
            )
        }
        Action::Propose(Record::TokenStep { fence, step, .. }) => format!("propose {}: {step:?}", fence.0),
        Action::Propose(record) => format!("propose {record:?}"),
        Action::Begin { step: Step::Prepare(what), of: it, within } => format!("{} {what:?} within {within:?}", of(it)),
        Action::Begin { step: Step::Handover(scheme), of: it, within } => {
            format!("{} {scheme:?} within {within:?}", of(it))
        }
    }
}

fn check(output: &str, expected: &Expect) {
    expected.assert_eq(output);
}

#[test]
fn mover_begins_each_step_after_the_previous_step_ends() {
    let mut harness = Harness::new(&[A, A, A, B]);
    let mut output = harness.pass(500);
    output += &harness.prepared(1, Preparation::SyncOffsets);
    output += &harness.pass(300);
    output += &harness.prepared(1, Preparation::NotifyProducers);
    output += &harness.pass(300);
    harness.master(1, C, 6);
    output += &harness.pass(3000);
    check(
        &output,
        &expect![[r#"
        1.0 propose take 1 over 0 n1: g1 n1 -> n3
        1.1 1: g1 n1 -> n3 SyncOffsets within 5s
        1.5 propose 1: Prepare(NotifyProducers)
        1.5 1: g1 n1 -> n3 NotifyProducers within 5s
        1.8 propose 1: Handover(Consent)
        1.8 1: g1 n1 -> n3 Consent within 2s
        2.1 propose TokenEnd { fence: Fence(1) }
    "#]],
    );
}

#[test]
fn move_fails_if_the_master_keeps_its_mastership() {
    let mut harness = Harness::new(&[A, A, A]);
    harness.prepare(1);
    // The mover must begin no other move before the end of the failed move.
    check(
        &harness.pass(60_000),
        &expect![[r#"
            1.5 1: g1 n1 -> n2 Consent within 2s
            3.2 propose 1: Handover(Consent)
            3.5 propose 1: Handover(Wait)
            3.6 1: g1 n1 -> n2 Wait within 20s
            5.2 propose 1: Handover(Wait)
            6.9 propose 1: Handover(Wait)
            8.6 propose 1: Handover(Wait)
            10.3 propose 1: Handover(Wait)
            12.0 propose 1: Handover(Wait)
            13.7 propose 1: Handover(Wait)
            15.4 propose 1: Handover(Wait)
            17.1 propose 1: Handover(Wait)
            18.8 propose 1: Handover(Wait)
            20.5 propose 1: Handover(Wait)
            22.2 propose 1: Handover(Wait)
            23.6 propose TokenEnd { fence: Fence(1) }
            24.7 propose take 2 over 0 n1: g2 n1 -> n3
            24.8 2: g2 n1 -> n3 SyncOffsets within 5s
            26.4 propose 2: Prepare(SyncOffsets)
            28.1 propose 2: Prepare(SyncOffsets)
            29.8 propose TokenEnd { fence: Fence(2) }
            53.9 propose take 3 over 0 n1: g1 n1 -> n2
            54.0 3: g1 n1 -> n2 SyncOffsets within 5s
            55.6 propose 3: Prepare(SyncOffsets)
            57.3 propose 3: Prepare(SyncOffsets)
            59.0 propose TokenEnd { fence: Fence(3) }
            60.1 propose take 4 over 0 n1: g2 n1 -> n3
            60.2 4: g2 n1 -> n3 SyncOffsets within 5s
        "#]],
    );
}

#[test]
fn mover_waits_for_the_lease_to_end_after_a_rejected_hand_over() {
    let mut harness = Harness::new(&[A, A, A]);
    harness.prepare(1);
    let mut output = harness.pass(200);
    let step = Step::Handover(Scheme::Consent);
    output += &harness.describe(Input::Rejected { fence: Fence(9), step });
    output += &harness.describe(Input::Rejected { fence: Fence(1), step });
    assert!(!harness.mover.is_at(step), "the mover no longer pursues the rejected step");
    // Each report of the node repeats the rejection. The mover does not treat a repeated rejection as a rejection of
    // the next step.
    output += &harness.pass(100);
    output += &harness.describe(Input::Rejected { fence: Fence(1), step });
    assert!(harness.mover.is_at(Step::Handover(Scheme::Wait)));
    output += &harness.pass(200);
    check(
        &output,
        &expect![[r#"
        1.5 1: g1 n1 -> n2 Consent within 2s
        1.7 propose 1: Handover(Wait)
        1.7 1: g1 n1 -> n2 Wait within 20s
    "#]],
    );
}

/// If decisions take longer than the lease of the token, the holder of the token must not begin a step.
#[test]
fn mover_ends_a_move_if_the_next_step_is_not_decided_in_time() {
    let mut harness = Harness::new(&[A, A, A]);
    harness.decides = false;
    let mut output = harness.pass(500);
    let take = Take {
        precondition: (Fence(0), Slot(0)),
        holder: A,
        liveness: 1,
        group: GroupId(1),
        from: A,
        to: B,
        epoch: Epoch(5),
        stamp: harness.now,
    };
    harness.now = harness.now + Duration::from_secs(10);
    harness.decide(&Record::TokenTake(take));
    output += &harness.pass(7000);
    check(
        &output,
        &expect![[r#"
        1.0 propose take 1 over 0 n1: g1 n1 -> n2
        11.5 propose 1: Prepare(SyncOffsets)
        12.5 propose 1: Prepare(SyncOffsets)
        13.5 propose 1: Prepare(SyncOffsets)
        14.5 propose 1: Prepare(SyncOffsets)
        15.5 propose 1: Prepare(SyncOffsets)
        16.5 propose TokenEnd { fence: Fence(1) }
        17.5 propose TokenEnd { fence: Fence(1) }
    "#]],
    );
}

#[test]
fn move_fails_if_its_preparation_does_not_finish() {
    let mut harness = Harness::new(&[A, A, A]);
    check(
        &harness.pass(7000),
        &expect![[r#"
            1.0 propose take 1 over 0 n1: g1 n1 -> n2
            1.1 1: g1 n1 -> n2 SyncOffsets within 5s
            2.7 propose 1: Prepare(SyncOffsets)
            4.4 propose 1: Prepare(SyncOffsets)
            6.1 propose TokenEnd { fence: Fence(1) }
            7.2 propose take 2 over 0 n1: g2 n1 -> n3
            7.3 2: g2 n1 -> n3 SyncOffsets within 5s
        "#]],
    );
}

#[test]
fn mover_first_begins_the_move_that_has_failed_less_often() {
    let mut harness = Harness::new(&[A, A, A]);
    let options = Options { backoff: Duration::ZERO, ..Options::default() };
    harness.mover = Mover::new(options, Deviation::default());
    let mut output = String::new();
    for _ in 0..4 {
        output += &harness.pass(200);
        let fence = harness.system.token().unwrap().fence;
        harness.describe(Input::Rejected { fence, step: Step::FIRST });
        harness.pass(6000);
    }
    check(
        &output,
        &expect![[r#"
            1.0 propose take 1 over 0 n1: g1 n1 -> n2
            1.1 1: g1 n1 -> n2 SyncOffsets within 5s
            7.2 propose take 2 over 0 n1: g2 n1 -> n3
            7.3 2: g2 n1 -> n3 SyncOffsets within 5s
            13.4 propose take 3 over 0 n1: g1 n1 -> n2
            13.5 3: g1 n1 -> n2 SyncOffsets within 5s
            19.6 propose take 4 over 0 n1: g2 n1 -> n3
            19.7 4: g2 n1 -> n3 SyncOffsets within 5s
        "#]],
    );
}

#[test]
fn mover_moves_masters_of_a_drained_node_one_by_one() {
    let mut harness = Harness::new(&[A, B, C, B]);
    assert_eq!(harness.pass(5000), "");
    harness.decide(&Record::Drain { node: B, draining: true });
    let mut output = String::new();
    for fence in 1..=2 {
        output += &harness.pass(1500);
        output += &harness.prepared(fence, Preparation::SyncOffsets);
        output += &harness.pass(100);
        output += &harness.prepared(fence, Preparation::NotifyProducers);
        output += &harness.pass(100);
        let Token { group, to, .. } = *harness.system.token().unwrap();
        harness.master(group.0, to, 6);
    }
    output += &harness.pass(5000);
    check(
        &output,
        &expect![[r#"
        6.0 propose take 1 over 0 n1: g2 n2 -> n1
        6.1 1: g2 n2 -> n1 SyncOffsets within 5s
        7.5 propose 1: Prepare(NotifyProducers)
        7.5 1: g2 n2 -> n1 NotifyProducers within 5s
        7.6 propose 1: Handover(Consent)
        7.6 1: g2 n2 -> n1 Consent within 2s
        7.7 propose TokenEnd { fence: Fence(1) }
        8.8 propose take 2 over 0 n1: g4 n2 -> n3
        8.9 2: g4 n2 -> n3 SyncOffsets within 5s
        9.2 propose 2: Prepare(NotifyProducers)
        9.2 2: g4 n2 -> n3 NotifyProducers within 5s
        9.3 propose 2: Handover(Consent)
        9.3 2: g4 n2 -> n3 Consent within 2s
        9.4 propose TokenEnd { fence: Fence(2) }
    "#]],
    );
}

#[test]
fn mover_moves_no_master_to_a_lagging_or_unreachable_node() {
    let mut harness = Harness::new(&[A, A, A, A, A, A]);
    harness.reachable.remove(&B);
    harness.groups.get_mut(&GroupId(2)).unwrap().lag.insert(C, 1001);
    let ideal = harness.mover.ideal(&View {
        me: A,
        liveness: 1,
        masters_system: true,
        system: &harness.system,
        groups: &harness.groups,
        reachable: &harness.reachable,
    });
    check(
        &format!("{:?}\n{}", ideal.values().collect::<Vec<_>>(), harness.pass(200)),
        &expect![[r#"
        [NodeId(2), NodeId(3), NodeId(2), NodeId(3), NodeId(1), NodeId(1)]
        1.0 propose take 1 over 0 n1: g4 n1 -> n3
        1.1 1: g4 n1 -> n3 SyncOffsets within 5s
    "#]],
    );
}

#[test]
fn mover_takes_over_a_token_that_its_holder_does_not_renew() {
    let mut harness = Harness::new(&[A, A, A]);
    let (group, epoch) = (GroupId(3), Epoch(5));
    let precondition = (Fence(0), Slot(0));
    let take = Take { precondition, holder: C, liveness: 1, group, from: A, to: B, epoch, stamp: Instant(77) };
    harness.decide(&Record::TokenTake(take));
    let mut output = harness.pass(20_000);
    // The holder renews its token, so the wait of the mover starts again.
    harness.decide(&Record::TokenStep { fence: Fence(1), step: Step::FIRST, stamp: Instant(99) });
    output += &harness.pass(28_000);
    check(
        &output,
        &expect![[r#"
        47.0 propose take 2 over 11 n1: g3 n1 -> n2
        47.1 2: g3 n1 -> n2 SyncOffsets within 5s
        48.7 propose 2: Prepare(SyncOffsets)
    "#]],
    );
}

#[test]
fn mover_ends_the_token_of_a_finished_move_at_once() {
    let mut harness = Harness::new(&[A, B, C]);
    let precondition = (Fence(0), Slot(0));
    let (group, epoch, stamp) = (GroupId(3), Epoch(4), Instant(77));
    harness.decide(&Record::TokenTake(Take {
        precondition,
        holder: B,
        liveness: 1,
        group,
        from: A,
        to: C,
        epoch,
        stamp,
    }));
    check(
        &harness.pass(300),
        &expect![[r#"
        1.0 propose TokenEnd { fence: Fence(1) }
    "#]],
    );
}

#[test]
fn restarted_mover_takes_over_the_token_of_its_earlier_process() {
    let mut harness = Harness::new(&[A, A, A]);
    harness.pass(200);
    harness.mover = Mover::new(Options::default(), Deviation::default());
    harness.decide(&Record::Join { node: A, liveness: 2, incarnation: 8, stamp: Instant(1) });
    let fence = harness.system.token().unwrap().fence;
    let view = View {
        me: A,
        liveness: 2,
        masters_system: true,
        system: &harness.system,
        groups: &harness.groups,
        reachable: &harness.reachable,
    };
    let input = Input::Prepared { fence, what: Preparation::SyncOffsets };
    assert_eq!(harness.mover.step(harness.now, &view, input), []);
    let waited = harness.now + Options::default().wait;
    assert!(matches!(harness.mover.step(waited, &view, input)[..], [Action::Propose(Record::TokenTake(_))]));
}

#[test]
fn mover_begins_a_step_only_within_the_lease_of_the_token() {
    let mut harness = Harness::new(&[A, A, A]);
    harness.pass(100);
    harness.decides = false;
    harness.masters_system = false;
    harness.pass(6000);
    harness.masters_system = true;
    let mut output = harness.pass(1500);
    harness.decides = true;
    output += &harness.pass(1000);
    check(
        &output,
        &expect![[r#"
        7.1 propose 1: Prepare(SyncOffsets)
        8.1 propose 1: Prepare(SyncOffsets)
        9.1 propose 1: Prepare(SyncOffsets)
        9.2 1: g1 n1 -> n2 SyncOffsets within 5s
    "#]],
    );
}

#[test]
fn mover_proposes_undecided_record_again() {
    let mut harness = Harness::new(&[A, A, A]);
    harness.decides = false;
    check(
        &harness.pass(2500),
        &expect![[r#"
        1.0 propose take 1 over 0 n1: g1 n1 -> n2
        2.0 propose take 1 over 0 n1: g1 n1 -> n2
        3.0 propose take 1 over 0 n1: g1 n1 -> n2
    "#]],
    );
}

#[test]
fn mover_runs_only_at_the_master_of_the_system_group() {
    let mut harness = Harness::new(&[A, A, A]);
    harness.masters_system = false;
    assert_eq!(harness.pass(60_000), "");
}

#[test]
fn mover_ends_a_move_that_is_no_longer_valid() {
    let mut harness = Harness::new(&[A, A, A]);
    harness.pass(300);
    harness.decide(&Record::Drain { node: B, draining: true });
    // The mover ends the token only at the time limit of the preparation, because the nodes may prepare the move until
    // then.
    let mut output = harness.pass(6500);
    harness.master(harness.system.token().unwrap().group.0, A, 6);
    output += &harness.pass(300);
    check(
        &output,
        &expect![[r#"
            6.1 propose TokenEnd { fence: Fence(1) }
            7.2 propose take 2 over 0 n1: g1 n1 -> n3
            7.3 2: g1 n1 -> n3 SyncOffsets within 5s
            7.8 propose TokenEnd { fence: Fence(2) }
        "#]],
    );
}

#[test]
fn mover_moves_masters_only_if_the_imbalance_is_large() {
    // The share of each node is 13.3 masters. The loads 11 and 15 differ from the share by less than a fifth of the
    // share, and the load 17 by more. After the moves, the loads 14 and 12 differ from the share by at most a tenth.
    let masters = |counts: [usize; 3]| -> Vec<NodeId> {
        [A, B, C].into_iter().zip(counts).flat_map(|(node, count)| vec![node; count]).collect()
    };
    assert_eq!(Harness::new(&masters([15, 14, 11])).pass(5000), "");
    let mut harness = Harness::new(&masters([17, 12, 11]));
    let mut moved = 0;
    loop {
        harness.pass(1500);
        let Some(token) = harness.system.token().cloned() else { break };
        harness.master(token.group.0, token.to, 6);
        moved += 1;
    }
    assert_eq!(moved, 3);
}

#[test]
#[should_panic(expected = "the wait for a token is longer than the time in which its holder may act")]
fn mover_panics_at_creation_if_its_wait_for_a_token_is_too_short() {
    drop(Mover::new(Options { wait: Duration::from_secs(25), ..Options::default() }, Deviation::default()));
}
