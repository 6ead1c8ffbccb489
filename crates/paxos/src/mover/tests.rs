use expect_test::{Expect, expect};

use super::*;

mod chaos;

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);

/// One mover on node A, master of the system group, which decides at once unless told otherwise.
struct Desk {
    mover: Mover,
    now: Instant,
    system: System,
    slot: Slot,
    groups: BTreeMap<GroupId, Facts>,
    reachable: BTreeSet<NodeId>,
    masters_system: bool,
    decides: bool,
}

impl Desk {
    /// Three nodes; the paxos groups 1, 2.. have these masters.
    fn new(masters: &[NodeId]) -> Desk {
        let mut desk = Desk {
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
            desk.decide(&Record::Node { node, capacity: 1 });
            desk.decide(&Record::Join { node, liveness: 1, incarnation: 7, stamp: Instant(1) });
        }
        for (group, master) in (1..).map(GroupId).zip(masters) {
            desk.decide(&Record::Group { group, replicas: vec![A, B, C] });
            let lag = BTreeMap::from([(A, 0), (B, 0), (C, 0)]);
            desk.groups.insert(group, Facts { master: Some((*master, Epoch(5))), lag });
        }
        desk
    }

    fn decide(&mut self, record: &Record) {
        self.slot = self.slot.next();
        self.system.apply(self.slot, record);
    }

    fn hear(&mut self, input: Input) -> Vec<Action> {
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

    /// Ticks ten times a second for so long, and tells what is done and when.
    fn pass(&mut self, millis: u64) -> String {
        let end = self.now + Duration::from_millis(millis);
        let mut story = String::new();
        while self.now < end {
            story += &self.tell(Input::Tick);
            self.now = self.now + Duration::from_millis(100);
        }
        story
    }

    fn tell(&mut self, input: Input) -> String {
        let at = self.now.0 / 100_000;
        self.hear(input).iter().map(|action| format!("{}.{} {}\n", at / 10, at % 10, show(action))).collect()
    }

    fn prepared(&mut self, fence: u64, what: Preparation) -> String {
        self.tell(Input::Prepared { fence: Fence(fence), what })
    }

    fn master(&mut self, group: u32, node: NodeId, epoch: u64) {
        self.groups.get_mut(&GroupId(group)).unwrap().master = Some((node, Epoch(epoch)));
    }

    /// Up to the hand-over of the move under this fence.
    fn prepare(&mut self, fence: u64) {
        self.pass(300);
        self.prepared(fence, Preparation::SyncOffsets);
        self.pass(200);
        self.prepared(fence, Preparation::TellProducers);
    }
}

fn show(action: &Action) -> String {
    let of = |of: &Move| format!("{}: {} {} -> {}", of.fence.0, of.group, of.from, of.to);
    match action {
        Action::Propose(Record::TokenTake(take)) => {
            format!(
                "propose take {} over {} {}: {} {} -> {}",
                take.seen.0.0 + 1,
                take.seen.1,
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

fn check(story: &str, expected: &Expect) {
    expected.assert_eq(story);
}

#[test]
fn a_master_moves_by_consent_and_the_next_move_waits_for_the_pause() {
    let mut desk = Desk::new(&[A, A, A, B]);
    let mut story = desk.pass(500);
    story += &desk.prepared(1, Preparation::SyncOffsets);
    story += &desk.pass(300);
    story += &desk.prepared(1, Preparation::TellProducers);
    story += &desk.pass(300);
    desk.master(1, C, 6);
    story += &desk.pass(3000);
    check(
        &story,
        &expect![[r#"
        1.0 propose take 1 over 0 n1: g1 n1 -> n3
        1.1 1: g1 n1 -> n3 SyncOffsets within 5s
        1.5 propose 1: Prepare(TellProducers)
        1.5 1: g1 n1 -> n3 TellProducers within 5s
        1.8 propose 1: Handover(Consent)
        1.8 1: g1 n1 -> n3 Consent within 2s
        2.1 propose TokenEnd { fence: Fence(1) }
    "#]],
    );
}

#[test]
fn without_consent_in_time_the_lease_is_waited_for_and_then_the_move_fails_and_is_tried_later() {
    let mut desk = Desk::new(&[A, A, A]);
    desk.prepare(1);
    // Nothing else may move meanwhile.
    check(
        &desk.pass(60_000),
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
fn a_refused_consent_falls_back_at_once() {
    let mut desk = Desk::new(&[A, A, A]);
    desk.prepare(1);
    let mut story = desk.pass(200);
    let step = Step::Handover(Scheme::Consent);
    story += &desk.tell(Input::Refused { fence: Fence(9), step });
    story += &desk.tell(Input::Refused { fence: Fence(1), step });
    assert!(!desk.mover.is_at(step), "it is given up");
    // It is said with each report, and says nothing of what is tried then.
    story += &desk.pass(100);
    story += &desk.tell(Input::Refused { fence: Fence(1), step });
    assert!(desk.mover.is_at(Step::Handover(Scheme::Wait)));
    story += &desk.pass(200);
    check(
        &story,
        &expect![[r#"
        1.5 1: g1 n1 -> n2 Consent within 2s
        1.7 propose 1: Handover(Wait)
        1.7 1: g1 n1 -> n2 Wait within 20s
    "#]],
    );
}

/// Where deciding takes longer than the token's lease, its holder may begin nothing.
#[test]
fn a_step_that_cannot_be_begun_fails_the_move_all_the_same() {
    let mut desk = Desk::new(&[A, A, A]);
    desk.decides = false;
    let mut story = desk.pass(500);
    let take = Take {
        seen: (Fence(0), Slot(0)),
        holder: A,
        liveness: 1,
        group: GroupId(1),
        from: A,
        to: B,
        epoch: Epoch(5),
        stamp: desk.now,
    };
    desk.now = desk.now + Duration::from_secs(10);
    desk.decide(&Record::TokenTake(take));
    story += &desk.pass(7000);
    check(
        &story,
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
fn a_preparation_that_is_not_answered_fails_the_move_and_another_goes_first() {
    let mut desk = Desk::new(&[A, A, A]);
    check(
        &desk.pass(7000),
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
fn of_two_moves_the_one_that_failed_less_often_comes_first() {
    let mut desk = Desk::new(&[A, A, A]);
    let options = Options { backoff: Duration::ZERO, ..Options::default() };
    desk.mover = Mover::new(options, Deviation::default());
    let mut story = String::new();
    for _ in 0..4 {
        story += &desk.pass(200);
        let fence = desk.system.token().unwrap().fence;
        desk.tell(Input::Refused { fence, step: Step::FIRST });
        desk.pass(6000);
    }
    check(
        &story,
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
fn a_drained_node_gives_its_masters_away_one_by_one() {
    let mut desk = Desk::new(&[A, B, C, B]);
    assert_eq!(desk.pass(5000), "");
    desk.decide(&Record::Drain { node: B, draining: true });
    let mut story = String::new();
    for fence in 1..=2 {
        story += &desk.pass(1500);
        story += &desk.prepared(fence, Preparation::SyncOffsets);
        story += &desk.pass(100);
        story += &desk.prepared(fence, Preparation::TellProducers);
        story += &desk.pass(100);
        let Token { group, to, .. } = *desk.system.token().unwrap();
        desk.master(group.0, to, 6);
    }
    story += &desk.pass(5000);
    check(
        &story,
        &expect![[r#"
        6.0 propose take 1 over 0 n1: g2 n2 -> n1
        6.1 1: g2 n2 -> n1 SyncOffsets within 5s
        7.5 propose 1: Prepare(TellProducers)
        7.5 1: g2 n2 -> n1 TellProducers within 5s
        7.6 propose 1: Handover(Consent)
        7.6 1: g2 n2 -> n1 Consent within 2s
        7.7 propose TokenEnd { fence: Fence(1) }
        8.8 propose take 2 over 0 n1: g4 n2 -> n3
        8.9 2: g4 n2 -> n3 SyncOffsets within 5s
        9.2 propose 2: Prepare(TellProducers)
        9.2 2: g4 n2 -> n3 TellProducers within 5s
        9.3 propose 2: Handover(Consent)
        9.3 2: g4 n2 -> n3 Consent within 2s
        9.4 propose TokenEnd { fence: Fence(2) }
    "#]],
    );
}

#[test]
fn a_target_that_lags_or_is_not_reached_is_passed_over() {
    let mut desk = Desk::new(&[A, A, A, A, A, A]);
    desk.reachable.remove(&B);
    desk.groups.get_mut(&GroupId(2)).unwrap().lag.insert(C, 1001);
    let ideal = desk.mover.ideal(&View {
        me: A,
        liveness: 1,
        masters_system: true,
        system: &desk.system,
        groups: &desk.groups,
        reachable: &desk.reachable,
    });
    check(
        &format!("{:?}\n{}", ideal.values().collect::<Vec<_>>(), desk.pass(200)),
        &expect![[r#"
        [NodeId(2), NodeId(3), NodeId(2), NodeId(3), NodeId(1), NodeId(1)]
        1.0 propose take 1 over 0 n1: g4 n1 -> n3
        1.1 1: g4 n1 -> n3 SyncOffsets within 5s
    "#]],
    );
}

#[test]
fn a_token_that_is_anothers_is_taken_over_after_the_wait_with_its_move() {
    let mut desk = Desk::new(&[A, A, A]);
    let (group, epoch) = (GroupId(3), Epoch(5));
    let seen = (Fence(0), Slot(0));
    let take = Take { seen, holder: C, liveness: 1, group, from: A, to: B, epoch, stamp: Instant(77) };
    desk.decide(&Record::TokenTake(take));
    let mut story = desk.pass(20_000);
    // It lives: it is waited for anew.
    desk.decide(&Record::TokenStep { fence: Fence(1), step: Step::FIRST, stamp: Instant(99) });
    story += &desk.pass(28_000);
    check(
        &story,
        &expect![[r#"
        47.0 propose take 2 over 11 n1: g3 n1 -> n2
        47.1 2: g3 n1 -> n2 SyncOffsets within 5s
        48.7 propose 2: Prepare(SyncOffsets)
    "#]],
    );
}

#[test]
fn anothers_token_whose_move_is_done_is_ended_without_a_wait() {
    let mut desk = Desk::new(&[A, B, C]);
    let seen = (Fence(0), Slot(0));
    let (group, epoch, stamp) = (GroupId(3), Epoch(4), Instant(77));
    desk.decide(&Record::TokenTake(Take { seen, holder: B, liveness: 1, group, from: A, to: C, epoch, stamp }));
    check(
        &desk.pass(300),
        &expect![[r#"
        1.0 propose TokenEnd { fence: Fence(1) }
    "#]],
    );
}

#[test]
fn the_token_of_an_earlier_process_of_this_node_is_anothers() {
    let mut desk = Desk::new(&[A, A, A]);
    desk.pass(200);
    desk.mover = Mover::new(Options::default(), Deviation::default());
    desk.decide(&Record::Join { node: A, liveness: 2, incarnation: 8, stamp: Instant(1) });
    let fence = desk.system.token().unwrap().fence;
    let view = View {
        me: A,
        liveness: 2,
        masters_system: true,
        system: &desk.system,
        groups: &desk.groups,
        reachable: &desk.reachable,
    };
    let input = Input::Prepared { fence, what: Preparation::SyncOffsets };
    assert_eq!(desk.mover.step(desk.now, &view, input), []);
    let waited = desk.now + Options::default().wait;
    assert!(matches!(desk.mover.step(waited, &view, input)[..], [Action::Propose(Record::TokenTake(_))]));
}

#[test]
fn no_step_begins_after_the_tokens_lease_until_it_is_renewed() {
    let mut desk = Desk::new(&[A, A, A]);
    desk.pass(100);
    desk.decides = false;
    desk.masters_system = false;
    desk.pass(6000);
    desk.masters_system = true;
    let mut story = desk.pass(1500);
    desk.decides = true;
    story += &desk.pass(1000);
    check(
        &story,
        &expect![[r#"
        7.1 propose 1: Prepare(SyncOffsets)
        8.1 propose 1: Prepare(SyncOffsets)
        9.1 propose 1: Prepare(SyncOffsets)
        9.2 1: g1 n1 -> n2 SyncOffsets within 5s
    "#]],
    );
}

#[test]
fn what_is_not_decided_is_proposed_again() {
    let mut desk = Desk::new(&[A, A, A]);
    desk.decides = false;
    check(
        &desk.pass(2500),
        &expect![[r#"
        1.0 propose take 1 over 0 n1: g1 n1 -> n2
        2.0 propose take 1 over 0 n1: g1 n1 -> n2
        3.0 propose take 1 over 0 n1: g1 n1 -> n2
    "#]],
    );
}

#[test]
fn a_node_that_does_not_master_the_system_group_does_nothing() {
    let mut desk = Desk::new(&[A, A, A]);
    desk.masters_system = false;
    assert_eq!(desk.pass(60_000), "");
}

#[test]
fn a_move_is_given_up_when_its_target_is_drained_or_another_became_master() {
    let mut desk = Desk::new(&[A, A, A]);
    desk.pass(300);
    desk.decide(&Record::Drain { node: B, draining: true });
    // Its preparation may go on until its limit.
    let mut story = desk.pass(6500);
    desk.master(desk.system.token().unwrap().group.0, A, 6);
    story += &desk.pass(300);
    check(
        &story,
        &expect![[r#"
            6.1 propose TokenEnd { fence: Fence(1) }
            7.2 propose take 2 over 0 n1: g1 n1 -> n3
            7.3 2: g1 n1 -> n3 SyncOffsets within 5s
            7.8 propose TokenEnd { fence: Fence(2) }
        "#]],
    );
}

#[test]
fn balancing_goes_on_to_the_goal_and_does_not_begin_within_the_start() {
    // Shares of 13.3: 11 and 15 are within a fifth of that, 17 are not; then 14 and 12 are within a tenth.
    let masters = |counts: [usize; 3]| -> Vec<NodeId> {
        [A, B, C].into_iter().zip(counts).flat_map(|(node, count)| vec![node; count]).collect()
    };
    assert_eq!(Desk::new(&masters([15, 14, 11])).pass(5000), "");
    let mut desk = Desk::new(&masters([17, 12, 11]));
    let mut moved = 0;
    loop {
        desk.pass(1500);
        let Some(token) = desk.system.token().cloned() else { break };
        desk.master(token.group.0, token.to, 6);
        moved += 1;
    }
    assert_eq!(moved, 3);
}

#[test]
#[should_panic(expected = "a token is waited for as long as its holder may act")]
fn a_wait_shorter_than_a_move_is_refused() {
    drop(Mover::new(Options { wait: Duration::from_secs(25), ..Options::default() }, Deviation::default()));
}
