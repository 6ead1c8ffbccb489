//! Nodes with a system group that moves the masters of all others, on links and disks that take a millisecond.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use expect_test::{Expect, expect};
use paxos::mover::Move;
use paxos::system::{Fence, Preparation, Record as Change, Scheme, Step};
use paxos::{
    Effects, Epoch, Event, GroupId, Input, Instant, Message, Node, NodeId, NodeInput, Options, Orders, Process,
    ProposalId, Record, Report, Serving, Slot, Token,
};

const NODES: u32 = 3;

/// A message on its way, and when it arrives.
type Letter = (Instant, NodeId, NodeId, GroupId, Message);

struct Cluster {
    now: Instant,
    options: Arc<Options>,
    groups: Vec<(GroupId, Vec<NodeId>)>,
    nodes: BTreeMap<NodeId, Seat>,
    wire: Vec<Letter>,
    /// Pairs of nodes that do not hear each other.
    cut: BTreeSet<(NodeId, NodeId)>,
    /// So long messages with orders take.
    orders_take: Duration,
    /// Whose application never is prepared.
    idle: BTreeSet<NodeId>,
    /// The move that was ordered last for each paxos group.
    ordered: BTreeMap<GroupId, Move>,
    told: String,
}

struct Seat {
    node: Option<Node>,
    effects: Effects,
    records: Vec<(GroupId, Record)>,
    starts: u64,
}

impl Cluster {
    fn new(groups: u32, options: Options) -> Cluster {
        Cluster::of(vec![(1..=NODES).collect(); 1 + groups as usize], options)
    }

    /// The members of each paxos group, the system group's first.
    fn of(groups: Vec<Vec<u32>>, options: Options) -> Cluster {
        let groups = (0..).map(GroupId).zip(groups);
        let groups: Vec<(_, Vec<_>)> =
            groups.map(|(id, nodes)| (id, nodes.into_iter().map(NodeId).collect())).collect();
        let nodes: BTreeSet<NodeId> = groups.iter().flat_map(|(_, nodes)| nodes.clone()).collect();
        let seat = || Seat { node: None, effects: Effects::default(), records: Vec::new(), starts: 0 };
        let mut cluster = Cluster {
            now: Instant(1_000_000),
            options: Arc::new(options),
            groups,
            nodes: nodes.iter().map(|node| (*node, seat())).collect(),
            wire: Vec::new(),
            cut: BTreeSet::new(),
            orders_take: Duration::from_millis(1),
            idle: BTreeSet::new(),
            ordered: BTreeMap::new(),
            told: String::new(),
        };
        nodes.iter().for_each(|node| cluster.start(*node));
        // A lease is waited for at first, as somebody may have been master.
        cluster.run(7_000);
        for node in nodes {
            cluster.change(&Change::Node { node, capacity: 1 });
        }
        cluster.run(200);
        cluster.told.clear();
        cluster
    }

    fn start(&mut self, id: NodeId) {
        let seat = self.nodes.get_mut(&id).unwrap();
        seat.starts += 1;
        let process = Process { node: id, incarnation: 1000 * u64::from(id.0) + seat.starts };
        let records = seat.records.clone();
        let founders = |(group, nodes): &(GroupId, Vec<NodeId>)| {
            (*group, if nodes.contains(&id) { nodes.clone() } else { Vec::new() })
        };
        let groups: Vec<_> = self.groups.iter().map(founders).collect();
        seat.node = Some(Node::start(process, &self.options, &groups, records, self.now, &mut seat.effects));
        self.collect(id);
    }

    fn stop(&mut self, id: NodeId) {
        self.nodes.get_mut(&id).unwrap().node = None;
        self.tell(&format!("{id} is gone"));
    }

    fn change(&mut self, record: &Change) {
        let id = self.master(GroupId::SYSTEM).expect("somebody serves the system group");
        let input = Input::Forward { entry: record.encode().into() };
        self.step(id, NodeInput::Group { group: GroupId::SYSTEM, input });
    }

    fn step(&mut self, id: NodeId, input: NodeInput) {
        let seat = self.nodes.get_mut(&id).unwrap();
        if let Some(node) = &mut seat.node {
            node.step(self.now, input, &mut seat.effects);
            self.collect(id);
        }
    }

    /// One that is not due makes no difference.
    fn tick(&mut self, id: NodeId) {
        let seat = self.nodes.get_mut(&id).unwrap();
        let Some(node) = &mut seat.node else { return };
        let is_due = node.next_tick(self.now).is_some_and(|at| at <= self.now);
        node.step(self.now, NodeInput::Tick, &mut seat.effects);
        let Effects { records, sends, events, .. } = &seat.effects;
        assert!(is_due || records.is_empty() && sends.is_empty() && events.is_empty(), "{id}: {:?}", seat.effects);
        self.collect(id);
    }

    fn collect(&mut self, id: NodeId) {
        let seat = self.nodes.get_mut(&id).unwrap();
        let token = seat.effects.token;
        let has_written = !seat.effects.records.is_empty();
        seat.records.append(&mut seat.effects.records);
        seat.effects.token = Token(token.0 + u64::from(has_written));
        let at = self.now + Duration::from_millis(1);
        for (to, group, message) in std::mem::take(&mut seat.effects.sends) {
            let at = match &message {
                Message::Orders(orders) => {
                    self.ordered.insert(orders.of.group, orders.of);
                    self.now + self.orders_take
                }
                _ => at,
            };
            if !self.cut.contains(&(id.min(to), id.max(to))) {
                self.wire.push((at, id, to, group, message));
            }
        }
        for (group, event) in std::mem::take(&mut seat.effects.events) {
            self.hear(id, group, event);
        }
        if has_written {
            self.step(id, NodeInput::Persisted(token));
        }
    }

    fn hear(&mut self, id: NodeId, group: GroupId, event: Event) {
        match event {
            Event::Prepare { of, what } => {
                self.tell(&format!("{id} prepares {group} for {}: {what:?}", of.to));
                if !self.idle.contains(&id) {
                    self.step(id, NodeInput::Prepared { fence: of.fence, what });
                }
            }
            Event::Serves { tenure } => self.tell(&format!("{id} serves {group} as {}", tenure.epoch)),
            Event::Refused { why, .. } => self.tell(&format!("{id} refuses: {why}")),
            _ => {}
        }
    }

    fn tell(&mut self, what: &str) {
        let seconds = Duration::from_micros(self.now.0).as_secs_f64();
        writeln!(self.told, "{seconds:.3} {what}").unwrap();
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.pass();
            self.check_orders();
        }
    }

    /// A millisecond goes by.
    fn pass(&mut self) {
        self.now = self.now + Duration::from_millis(1);
        let now = self.now;
        for (_, from, to, group, message) in self.wire.extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>() {
            self.step(to, NodeInput::Message { from, group, message });
        }
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.tick(id);
        }
    }

    /// Until the system group's master knows that a move is at this step.
    fn run_until(&mut self, step: Step) {
        let is_there = |cluster: &Cluster| {
            let holder = &cluster.nodes[&cluster.master(GroupId::SYSTEM).unwrap()];
            holder.node.as_ref().unwrap().system().token().is_some_and(|token| token.step == step)
        };
        while !is_there(self) {
            self.run(1);
        }
    }

    fn check_orders(&self) {
        let nodes: Vec<&Node> = self.nodes.values().filter_map(|seat| seat.node.as_ref()).collect();
        let epoch =
            |group| nodes.iter().filter_map(move |node| Some(node.group(group)?.agreed().mastership.tenure.epoch));
        let obeyed = nodes.iter().filter_map(|node| Some(node.orders(self.now)?.of));
        let obeyed: Vec<_> = obeyed.chain(self.leaves()).collect();
        let open = obeyed.iter().filter(|of| epoch(of.group).max() <= Some(of.epoch));
        let fences: BTreeSet<_> = open.map(|of| of.fence).collect();
        assert!(fences.len() <= 1, "moves {fences:?} are in flight at {:?}", self.now);
    }

    /// The moves for which masters have said when they will leave.
    fn leaves(&self) -> impl Iterator<Item = Move> {
        let leaves = |of: &&Move| {
            let group = self.nodes[&of.from].node.as_ref().and_then(|node| node.group(of.group));
            group.is_some_and(|group| group.serves(self.now).is_some() && group.tip().mastership.shortened.is_some())
        };
        self.ordered.values().filter(leaves).copied()
    }

    fn master(&self, group: GroupId) -> Option<NodeId> {
        let serves = |seat: &Seat| seat.node.as_ref()?.group(group)?.serves(self.now);
        let mut masters = self.nodes.iter().filter(|(_, seat)| serves(seat).is_some()).map(|(id, _)| *id);
        let master = masters.next();
        assert_eq!(masters.next(), None, "two serve {group}");
        master
    }

    fn masters(&self) -> String {
        let name = |(group, _): &(GroupId, _)| self.master(*group).map_or("-".to_owned(), |node| node.to_string());
        self.groups.iter().skip(1).map(name).collect::<Vec<_>>().join(" ")
    }

    fn check(&mut self, expected: &Expect) {
        let masters = self.masters();
        writeln!(self.told, "masters {masters}").unwrap();
        expected.assert_eq(&self.told);
        self.told.clear();
    }
}

/// Three paxos groups, each with another node as master.
fn spread(options: Options) -> Cluster {
    let mut cluster = Cluster::new(3, options);
    cluster.run(15_000);
    let masters: BTreeSet<_> = (1..=3).map(|group| cluster.master(GroupId(group))).collect();
    assert_eq!(masters.len(), 3, "{}", cluster.told);
    cluster.told.clear();
    cluster
}

fn by(scheme: Scheme) -> Options {
    let mut options = Options::default();
    options.mover.scheme = scheme;
    options
}

/// A node that is about to be told that its lease is to run out, and the system group's master.
fn hand_over() -> (Cluster, NodeId, NodeId) {
    let mut cluster = spread(by(Scheme::Wait));
    let node = drain(&mut cluster);
    cluster.run_until(Step::Handover(Scheme::Wait));
    let holder = cluster.master(GroupId::SYSTEM).unwrap();
    (cluster, node, holder)
}

/// One that is not the system group's master.
fn drain(cluster: &mut Cluster) -> NodeId {
    let holder = cluster.master(GroupId::SYSTEM);
    let node = (1..=NODES).map(NodeId).find(|node| Some(*node) != holder).unwrap();
    cluster.change(&Change::Drain { node, draining: true });
    node
}

/// So many paxos groups after so long, and where their masters are then.
fn settled(groups: u32, millis: u64) -> Cluster {
    let mut cluster = Cluster::new(groups, Options::default());
    cluster.run(millis);
    let masters = cluster.masters();
    cluster.told = format!("masters {masters}\n");
    cluster
}

#[test]
fn a_drained_node_is_left_by_one_master_after_the_other() {
    let mut cluster = settled(6, 12_000);
    drain(&mut cluster);
    cluster.run(8_000);
    cluster.check(&expect![[r#"
        masters n2 n2 n3 n3 n1 n1
        20.309 n1 prepares g5 for n2: SyncOffsets
        20.317 n1 prepares g5 for n2: TellProducers
        20.331 n2 serves g5 as e3
        21.709 n1 prepares g6 for n3: SyncOffsets
        21.717 n1 prepares g6 for n3: TellProducers
        21.730 n3 serves g6 as e3
        masters n2 n2 n3 n3 n2 n3
    "#]]);
}

#[test]
fn a_node_that_was_drained_gets_masters_again() {
    let mut cluster = spread(Options::default());
    let node = drain(&mut cluster);
    cluster.run(5_000);
    cluster.check(&expect![[r#"
        23.309 n1 prepares g1 for n2: SyncOffsets
        23.317 n1 prepares g1 for n2: TellProducers
        23.331 n2 serves g1 as e4
        masters n2 n2 n3
    "#]]);
    cluster.change(&Change::Drain { node, draining: false });
    cluster.run(5_000);
    cluster.check(&expect![[r#"
        28.709 n2 prepares g1 for n1: SyncOffsets
        28.717 n2 prepares g1 for n1: TellProducers
        28.731 n1 serves g1 as e5
        masters n1 n2 n3
    "#]]);
}

#[test]
fn a_master_leaves_whom_another_of_its_masterships_weighs_down() {
    let mut cluster = settled(4, 15_000);
    let weights = (1..=4).map(|group| (GroupId(group), if group == 4 { 200 } else { 100 })).collect();
    cluster.change(&Change::Weigh { weights });
    cluster.run(5_000);
    cluster.check(&expect![[r#"
        masters n1 n2 n3 n3
        23.304 n3 prepares g3 for n1: SyncOffsets
        23.306 n3 prepares g3 for n1: TellProducers
        23.315 n1 serves g3 as e3
        masters n1 n2 n1 n3
    "#]]);
}

#[test]
fn a_lease_is_cut_short_or_waited_for_where_that_is_wanted() {
    for (scheme, expected) in [
        (
            Scheme::Shorten,
            expect![[r#"
                23.809 n1 prepares g1 for n2: SyncOffsets
                23.817 n1 prepares g1 for n2: TellProducers
                24.331 n2 serves g1 as e4
                masters n2 n2 n3
            "#]],
        ),
        (
            Scheme::Wait,
            expect![[r#"
                23.309 n1 prepares g1 for n2: SyncOffsets
                23.317 n1 prepares g1 for n2: TellProducers
                28.336 n2 serves g1 as e4
                masters n2 n2 n3
            "#]],
        ),
    ] {
        let mut cluster = spread(by(scheme));
        drain(&mut cluster);
        cluster.run(9_000);
        cluster.check(&expected);
    }
}

#[test]
fn what_is_never_prepared_stays() {
    let mut cluster = spread(Options::default());
    let node = drain(&mut cluster);
    cluster.idle.insert(node);
    cluster.run(45_000);
    cluster.check(&expect![[r#"
        23.309 n1 prepares g1 for n2: SyncOffsets
        58.509 n1 prepares g1 for n2: SyncOffsets
        masters n1 n2 n3
    "#]]);
}

#[test]
fn orders_that_were_long_on_their_way_are_not_obeyed() {
    let mut cluster = spread(Options::default());
    drain(&mut cluster);
    // Longer than the limit of a preparation.
    cluster.orders_take = Duration::from_millis(5_100);
    cluster.run(20_000);
    cluster.check(&expect![[r#"
        masters n1 n2 n3
    "#]]);
}

/// One that is to end its lease and has no time left for that would be master when others are moved.
#[test]
fn a_master_that_could_not_leave_within_its_orders_stays() {
    let (mut cluster, ..) = hand_over();
    // Of 20 s; a lease is 5 s.
    cluster.orders_take = Duration::from_millis(15_500);
    cluster.run(26_000);
    cluster.check(&expect![[r#"
        23.309 n1 prepares g1 for n2: SyncOffsets
        23.317 n1 prepares g1 for n2: TellProducers
        masters n1 n2 n3
    "#]]);
}

#[test]
fn a_move_that_became_moot_is_not_ordered_any_more() {
    let (mut cluster, node, holder) = hand_over();
    // Its report that asks for orders comes when the master to be is to have none.
    cluster.cut.insert((node.min(holder), node.max(holder)));
    cluster.run(300);
    let next = (1..=NODES).map(NodeId).find(|next| ![node, holder].contains(next)).unwrap();
    cluster.change(&Change::Drain { node: next, draining: true });
    cluster.run(300);
    cluster.cut.clear();
    cluster.run(10_000);
    cluster.check(&expect![[r#"
        23.309 n1 prepares g1 for n2: SyncOffsets
        23.317 n1 prepares g1 for n2: TellProducers
        masters n1 n2 n3
    "#]]);
}

#[test]
fn a_report_that_was_overtaken_by_a_later_one_of_its_process_is_not_answered() {
    let (mut cluster, node, holder) = hand_over();
    let mut is_answered = |process: u64, stamp: Instant| {
        let report = Report { process, stamp, serves: Vec::new(), prepared: None, refused: None };
        let message = Message::Report(report);
        cluster.wire.clear();
        cluster.step(holder, NodeInput::Message { from: node, group: GroupId::SYSTEM, message });
        cluster.wire.iter().any(|(.., message)| matches!(message, Message::Orders(orders) if orders.stamp == stamp))
    };
    assert!(is_answered(7, Instant(9)));
    assert!(is_answered(7, Instant(9)), "it came twice");
    assert!(!is_answered(7, Instant(8)));
    assert!(is_answered(8, Instant(1)), "another process has another clock");
}

#[test]
#[should_panic(expected = "can do so within the time that it has")]
fn a_lease_that_is_longer_than_a_move_may_take_is_refused() {
    drop(Cluster::new(1, Options { lease: Duration::from_secs(20), ..Options::default() }));
}

#[test]
#[should_panic(expected = "only records are proposed to the system group")]
fn what_is_no_record_is_not_proposed_to_the_system_group() {
    let mut cluster = spread(Options::default());
    let propose = Input::Propose { id: ProposalId(1), entry: "no record".into() };
    cluster.step(NodeId(1), NodeInput::Group { group: GroupId::SYSTEM, input: propose });
}

#[test]
fn a_move_whose_holder_is_gone_is_taken_over_by_the_next_one() {
    let mut cluster = spread(Options::default());
    let node = drain(&mut cluster);
    cluster.idle.insert(node);
    cluster.run(2_000);
    cluster.stop(cluster.master(GroupId::SYSTEM).unwrap());
    cluster.run(20_000);
    cluster.idle.clear();
    cluster.run(25_000);
    cluster.check(&expect![[r#"
        23.309 n1 prepares g1 for n2: SyncOffsets
        25.200 n3 is gone
        30.028 n1 serves g0 as e2
        30.450 n1 serves g3 as e3
        51.030 n1 prepares g1 for n2: SyncOffsets
        51.032 n1 prepares g1 for n2: TellProducers
        51.041 n2 serves g1 as e4
        52.430 n1 prepares g3 for n2: SyncOffsets
        52.432 n1 prepares g3 for n2: TellProducers
        52.441 n2 serves g3 as e4
        masters n2 n2 n2
    "#]]);
}

#[test]
fn a_node_whose_storage_failed_refuses_what_is_proposed_and_does_nothing_else() {
    let mut cluster = spread(Options::default());
    let failed = drain(&mut cluster);
    cluster.run(110);
    cluster.step(failed, NodeInput::StorageFailed);
    let records = cluster.nodes[&failed].records.len();
    cluster.tell(&format!("{failed} has no storage"));
    // What it said before arrives.
    cluster.run(2);
    for _ in 0..10_000 {
        cluster.run(1);
        assert!(cluster.wire.iter().all(|(_, from, ..)| *from != failed), "{:?}", cluster.wire);
    }
    let id = ProposalId(1);
    cluster.step(failed, NodeInput::Group { group: GroupId(1), input: Input::Propose { id, entry: "x".into() } });
    let seat = &cluster.nodes[&failed];
    assert_eq!((seat.node.as_ref().unwrap().next_tick(cluster.now), seat.records.len()), (None, records));
    cluster.check(&expect![[r#"
        23.309 n1 prepares g1 for n2: SyncOffsets
        23.310 n1 has no storage
        28.026 n3 serves g1 as e4
        33.312 n1 refuses: this node is not master, and knows of none: propose it again later, or to another
        masters n3 n2 n3
    "#]]);
}

/// It is alive by a node of the system group that hears it, and cannot reach those to whom it leaves its paxos group.
#[test]
fn a_master_that_reaches_one_node_alone_leaves_its_group_by_way_of_that_one() {
    let mut cluster = Cluster::of(vec![vec![1, 2, 3], vec![1, 3, 4]], Options::default());
    cluster.run(10_000);
    let master = NodeId(3);
    assert_eq!([GroupId::SYSTEM, GroupId(1)].map(|group| cluster.master(group)), [Some(master); 2]);
    cluster.told.clear();
    cluster.cut.extend([(NodeId(1), master), (master, NodeId(4))]);
    let propose = Input::Propose { id: ProposalId(1), entry: "x".into() };
    cluster.step(master, NodeInput::Group { group: GroupId(1), input: propose });
    cluster.run(10_000);
    cluster.check(&expect![[r#"
        19.806 n4 serves g1 as e3
        masters n4
    "#]]);
}

#[test]
fn what_is_on_its_way_to_the_system_group_is_not_written_again_and_no_garbage_is() {
    let mut cluster = spread(Options::default());
    let master = cluster.master(GroupId::SYSTEM).unwrap();
    let last =
        |cluster: &Cluster| cluster.nodes[&master].node.as_ref().unwrap().group(GroupId::SYSTEM).unwrap().last().slot;
    let hear = |cluster: &mut Cluster, entry: Vec<u8>| {
        let message = Message::Forward { entry: entry.into() };
        cluster.step(master, NodeInput::Message { from: NodeId(1), group: GroupId::SYSTEM, message });
    };
    let before = last(&cluster).0;
    for stamp in 1..5 {
        let renewal = Change::Alive { node: NodeId(1), liveness: 7, last: Slot(99), stamp: Instant(stamp) };
        hear(&mut cluster, renewal.encode());
    }
    assert_eq!(last(&cluster).0, before + 1);
    let drain = |draining| Change::Drain { node: NodeId(1), draining }.encode();
    for draining in [true, false, true] {
        hear(&mut cluster, drain(draining));
        cluster.run(10);
    }
    hear(&mut cluster, b"no record".to_vec());
    cluster.run(10);
    assert_eq!(last(&cluster).0, before + 4);
}

/// Moves go wrong by that, and nothing else does.
#[test]
fn strange_reports_and_orders_are_lived_with() {
    const STEPS: [Step; 5] = [
        Step::FIRST,
        Step::Prepare(Preparation::TellProducers),
        Step::Handover(Scheme::Wait),
        Step::Handover(Scheme::Shorten),
        Step::Handover(Scheme::Consent),
    ];
    let mut cluster = spread(by(Scheme::Shorten));
    let (mut seed, mut obeyed) = (7_u64, BTreeSet::new());
    for round in 0..20_000 {
        let mut below = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % bound
        };
        let [from, other] = [(); 2].map(|()| NodeId(u32::try_from(1 + below(4)).unwrap()));
        let to = NodeId(u32::try_from(1 + below(3)).unwrap());
        // Whoever obeyed the last fence obeys no other any more, so that comes late.
        let fence = Fence(if round < 18_000 { round / 100 + below(4) } else { u64::MAX - below(200) });
        let step = STEPS[usize::try_from(below(5)).unwrap()];
        let group = GroupId(u32::try_from(below(5)).unwrap());
        let mut number = || if below(8) == 0 { u64::MAX - below(2) } else { below(8) };
        let (epoch, lag, process) = (Epoch(number()), number(), 1000 * u64::from(to.0) + 1);
        let stamp = if number() < 4 { Instant(number()) } else { cluster.now };
        let within = Duration::from_millis(number());
        let message = if round % 2 == 0 {
            let serves = vec![Serving { group, epoch, members: vec![(from, lag), (other, number())] }];
            let prepared = Some((fence, Preparation::SyncOffsets));
            Message::Report(Report { process, stamp, serves, prepared, refused: Some((fence, step)) })
        } else {
            let (from, to) = if number() % 2 == 0 { (to, other) } else { (other, to) };
            Message::Orders(Orders { process, stamp, of: Move { fence, group, from, to, epoch }, step, within })
        };
        cluster.step(to, NodeInput::Message { from, group: GroupId::SYSTEM, message: message.clone() });
        let orders = cluster.nodes[&to].node.as_ref().unwrap().orders(cluster.now);
        if let (Message::Orders(Orders { of, .. }), Some(orders)) = (message, orders)
            && orders.of == of
        {
            obeyed.insert((orders.step, of.from == to));
        }
        cluster.pass();
        (0..=3).for_each(|group| {
            cluster.master(GroupId(group));
        });
    }
    assert_eq!(obeyed.len(), 2 * STEPS.len(), "each step, for who leaves and who follows: {obeyed:?}");
    cluster.run(60_000);
    let masters = (0..=3).filter(|group| cluster.master(GroupId(*group)).is_some()).count();
    assert_eq!(masters, 4, "{}", cluster.told);
}
