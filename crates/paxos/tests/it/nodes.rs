//! Tests of nodes whose system group moves the masters of other paxos groups. Most messages arrive after a millisecond.

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

/// Message in flight, with the instant of its arrival.
type Envelope = (Instant, NodeId, NodeId, GroupId, Message);

struct Cluster {
    now: Instant,
    options: Arc<Options>,
    groups: Vec<(GroupId, Vec<NodeId>)>,
    nodes: BTreeMap<NodeId, TestNode>,
    wire: Vec<Envelope>,
    /// Pairs of nodes between which the network loses all messages.
    cut: BTreeSet<(NodeId, NodeId)>,
    /// Time that a message with orders for a move takes to arrive.
    orders_delay: Duration,
    /// Nodes whose applications never finish the preparation of a move.
    idle: BTreeSet<NodeId>,
    /// For each paxos group, the last move for which a node sent orders.
    ordered: BTreeMap<GroupId, Move>,
    output: String,
}

struct TestNode {
    node: Option<Node>,
    effects: Effects,
    records: Vec<(GroupId, Record)>,
    starts: u64,
}

impl Cluster {
    fn new(groups: u32, options: Options) -> Cluster {
        Cluster::of(vec![(1..=NODES).collect(); 1 + groups as usize], options)
    }

    /// Returns a cluster. Each list contains the members of one paxos group. The first list is for the system group.
    fn of(groups: Vec<Vec<u32>>, options: Options) -> Cluster {
        let groups = (0..).map(GroupId).zip(groups);
        let groups: Vec<(_, Vec<_>)> =
            groups.map(|(id, nodes)| (id, nodes.into_iter().map(NodeId).collect())).collect();
        let nodes: BTreeSet<NodeId> = groups.iter().flat_map(|(_, nodes)| nodes.clone()).collect();
        let host = || TestNode { node: None, effects: Effects::default(), records: Vec::new(), starts: 0 };
        let mut cluster = Cluster {
            now: Instant(1_000_000),
            options: Arc::new(options),
            groups,
            nodes: nodes.iter().map(|node| (*node, host())).collect(),
            wire: Vec::new(),
            cut: BTreeSet::new(),
            orders_delay: Duration::from_millis(1),
            idle: BTreeSet::new(),
            ordered: BTreeMap::new(),
            output: String::new(),
        };
        nodes.iter().for_each(|node| cluster.start(*node));
        // After a start, nodes elect no master for the duration of a lease, because an earlier lease may not be over.
        cluster.run(7_000);
        for node in nodes {
            cluster.change(&Change::Node { node, capacity: 1 });
        }
        cluster.run(200);
        cluster.output.clear();
        cluster
    }

    fn start(&mut self, id: NodeId) {
        let host = self.nodes.get_mut(&id).unwrap();
        host.starts += 1;
        let process = Process { node: id, incarnation: 1000 * u64::from(id.0) + host.starts };
        let records = host.records.clone();
        let founders = |(group, nodes): &(GroupId, Vec<NodeId>)| {
            (*group, if nodes.contains(&id) { nodes.clone() } else { Vec::new() })
        };
        let groups: Vec<_> = self.groups.iter().map(founders).collect();
        host.node = Some(Node::start(process, &self.options, &groups, records, self.now, &mut host.effects));
        self.collect(id);
    }

    fn stop(&mut self, id: NodeId) {
        self.nodes.get_mut(&id).unwrap().node = None;
        self.print(&format!("{id} stops"));
    }

    fn change(&mut self, record: &Change) {
        let id = self.master(GroupId::SYSTEM).expect("a node serves the system group");
        let input = Input::Forward { entry: record.encode().into() };
        self.step(id, NodeInput::Group { group: GroupId::SYSTEM, input });
    }

    fn step(&mut self, id: NodeId, input: NodeInput) {
        let host = self.nodes.get_mut(&id).unwrap();
        if let Some(node) = &mut host.node {
            node.step(self.now, input, &mut host.effects);
            self.collect(id);
        }
    }

    /// Sends a tick to a node. Checks that a tick that is not due has no effect.
    fn tick(&mut self, id: NodeId) {
        let host = self.nodes.get_mut(&id).unwrap();
        let Some(node) = &mut host.node else { return };
        let is_due = node.next_tick(self.now).is_some_and(|at| at <= self.now);
        node.step(self.now, NodeInput::Tick, &mut host.effects);
        let Effects { records, sends, events, .. } = &host.effects;
        let is_idle = records.is_empty() && sends.is_empty() && events.is_empty();
        assert!(is_due || is_idle, "a tick that was not due had effects on {id}: {:?}", host.effects);
        self.collect(id);
    }

    fn collect(&mut self, id: NodeId) {
        let host = self.nodes.get_mut(&id).unwrap();
        let token = host.effects.token;
        let has_written = !host.effects.records.is_empty();
        host.records.append(&mut host.effects.records);
        host.effects.token = Token(token.0 + u64::from(has_written));
        let at = self.now + Duration::from_millis(1);
        for (to, group, message) in std::mem::take(&mut host.effects.sends) {
            let at = match &message {
                Message::Orders(orders) => {
                    self.ordered.insert(orders.of.group, orders.of);
                    self.now + self.orders_delay
                }
                _ => at,
            };
            if !self.cut.contains(&(id.min(to), id.max(to))) {
                self.wire.push((at, id, to, group, message));
            }
        }
        for (group, event) in std::mem::take(&mut host.effects.events) {
            self.handle_event(id, group, event);
        }
        if has_written {
            self.step(id, NodeInput::Persisted(token));
        }
    }

    fn handle_event(&mut self, id: NodeId, group: GroupId, event: Event) {
        match event {
            Event::Prepare { of, what } => {
                self.print(&format!("{id} prepares {group} for {}: {what:?}", of.to));
                if !self.idle.contains(&id) {
                    self.step(id, NodeInput::Prepared { fence: of.fence, what });
                }
            }
            Event::Serves { term } => self.print(&format!("{id} serves {group} as {}", term.epoch)),
            Event::Rejected { why, .. } => self.print(&format!("{id} rejects: {why}")),
            _ => {}
        }
    }

    fn print(&mut self, what: &str) {
        let seconds = Duration::from_micros(self.now.0).as_secs_f64();
        writeln!(self.output, "{seconds:.3} {what}").unwrap();
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.pass();
            self.check_orders();
        }
    }

    /// Advances the time by a millisecond, delivers the messages that arrive, and sends a tick to each node.
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

    /// Runs the cluster until the master of the system group knows that a move has reached `step`.
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
        let nodes: Vec<&Node> = self.nodes.values().filter_map(|host| host.node.as_ref()).collect();
        let epoch =
            |group| nodes.iter().filter_map(move |node| Some(node.group(group)?.committed().mastership.term.epoch));
        let obeyed = nodes.iter().filter_map(|node| Some(node.orders(self.now)?.of));
        let obeyed: Vec<_> = obeyed.chain(self.leaves()).collect();
        let open = obeyed.iter().filter(|of| epoch(of.group).max() <= Some(of.epoch));
        let fences: BTreeSet<_> = open.map(|of| of.fence).collect();
        assert!(fences.len() <= 1, "moves with the fences {fences:?} overlap at {:?}", self.now);
    }

    /// Returns the moves whose present masters still serve but have proposed an early end of their leases.
    fn leaves(&self) -> impl Iterator<Item = Move> {
        let leaves = |of: &&Move| {
            let group = self.nodes[&of.from].node.as_ref().and_then(|node| node.group(of.group));
            group.is_some_and(|it| it.serves(self.now).is_some() && it.uncommitted().mastership.shortened.is_some())
        };
        self.ordered.values().filter(leaves).copied()
    }

    fn master(&self, group: GroupId) -> Option<NodeId> {
        let serves = |host: &TestNode| host.node.as_ref()?.group(group)?.serves(self.now);
        let mut masters = self.nodes.iter().filter(|(_, host)| serves(host).is_some()).map(|(id, _)| *id);
        let master = masters.next();
        assert_eq!(masters.next(), None, "two nodes serve {group}");
        master
    }

    fn masters(&self) -> String {
        let name = |(group, _): &(GroupId, _)| self.master(*group).map_or("-".to_owned(), |node| node.to_string());
        self.groups.iter().skip(1).map(name).collect::<Vec<_>>().join(" ")
    }

    fn check(&mut self, expected: &Expect) {
        let masters = self.masters();
        writeln!(self.output, "masters {masters}").unwrap();
        expected.assert_eq(&self.output);
        self.output.clear();
    }
}

/// Returns a cluster with three paxos groups, each with a different node as master.
fn spread(options: Options) -> Cluster {
    let mut cluster = Cluster::new(3, options);
    cluster.run(15_000);
    let masters: BTreeSet<_> = (1..=3).map(|group| cluster.master(GroupId(group))).collect();
    assert_eq!(masters.len(), 3, "{}", cluster.output);
    cluster.output.clear();
    cluster
}

fn by(scheme: Scheme) -> Options {
    let mut options = Options::default();
    options.mover.scheme = scheme;
    options
}

/// Returns a cluster in which a hand-over has just begun, the drained node, and the master of the system group.
fn hand_over() -> (Cluster, NodeId, NodeId) {
    let mut cluster = spread(by(Scheme::Wait));
    let node = drain(&mut cluster);
    cluster.run_until(Step::Handover(Scheme::Wait));
    let holder = cluster.master(GroupId::SYSTEM).unwrap();
    (cluster, node, holder)
}

/// Drains a node that is not the master of the system group. Returns the drained node.
fn drain(cluster: &mut Cluster) -> NodeId {
    let holder = cluster.master(GroupId::SYSTEM);
    let node = (1..=NODES).map(NodeId).find(|node| Some(*node) != holder).unwrap();
    cluster.change(&Change::Drain { node, draining: true });
    node
}

/// Runs a cluster with `groups` paxos groups for `millis` milliseconds, prints its masters, and returns the cluster.
fn balanced(groups: u32, millis: u64) -> Cluster {
    let mut cluster = Cluster::new(groups, Options::default());
    cluster.run(millis);
    let masters = cluster.masters();
    cluster.output = format!("masters {masters}\n");
    cluster
}

#[test]
fn mover_moves_masters_of_a_drained_node_one_by_one() {
    let mut cluster = balanced(6, 12_000);
    drain(&mut cluster);
    cluster.run(8_000);
    cluster.check(&expect![[r#"
        masters n2 n2 n3 n3 n1 n1
        20.309 n1 prepares g5 for n2: SyncOffsets
        20.317 n1 prepares g5 for n2: NotifyProducers
        20.331 n2 serves g5 as e3
        21.709 n1 prepares g6 for n3: SyncOffsets
        21.717 n1 prepares g6 for n3: NotifyProducers
        21.730 n3 serves g6 as e3
        masters n2 n2 n3 n3 n2 n3
    "#]]);
}

#[test]
fn node_becomes_master_again_after_its_drain_is_cancelled() {
    let mut cluster = spread(Options::default());
    let node = drain(&mut cluster);
    cluster.run(5_000);
    cluster.check(&expect![[r#"
        23.309 n1 prepares g1 for n2: SyncOffsets
        23.317 n1 prepares g1 for n2: NotifyProducers
        23.331 n2 serves g1 as e4
        masters n2 n2 n3
    "#]]);
    cluster.change(&Change::Drain { node, draining: false });
    cluster.run(5_000);
    cluster.check(&expect![[r#"
        28.709 n2 prepares g1 for n1: SyncOffsets
        28.717 n2 prepares g1 for n1: NotifyProducers
        28.731 n1 serves g1 as e5
        masters n1 n2 n3
    "#]]);
}

#[test]
fn mover_moves_a_mastership_away_from_an_overloaded_node() {
    let mut cluster = balanced(4, 15_000);
    let weights = (1..=4).map(|group| (GroupId(group), if group == 4 { 200 } else { 100 })).collect();
    cluster.change(&Change::Weigh { weights });
    cluster.run(5_000);
    cluster.check(&expect![[r#"
        masters n1 n2 n3 n3
        23.304 n3 prepares g3 for n1: SyncOffsets
        23.306 n3 prepares g3 for n1: NotifyProducers
        23.315 n1 serves g3 as e3
        masters n1 n2 n1 n3
    "#]]);
}

#[test]
fn master_hands_over_before_or_at_the_end_of_its_lease() {
    for (scheme, expected) in [
        (
            Scheme::Shorten,
            expect![[r#"
                23.809 n1 prepares g1 for n2: SyncOffsets
                23.817 n1 prepares g1 for n2: NotifyProducers
                24.331 n2 serves g1 as e4
                masters n2 n2 n3
            "#]],
        ),
        (
            Scheme::Wait,
            expect![[r#"
                23.309 n1 prepares g1 for n2: SyncOffsets
                23.317 n1 prepares g1 for n2: NotifyProducers
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
fn master_keeps_its_mastership_if_a_preparation_never_finishes() {
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
fn node_ignores_orders_that_arrive_after_their_time_limit() {
    let mut cluster = spread(Options::default());
    drain(&mut cluster);
    // The delay of orders exceeds the time limit of a preparation.
    cluster.orders_delay = Duration::from_millis(5_100);
    cluster.run(20_000);
    cluster.check(&expect![[r#"
        masters n1 n2 n3
    "#]]);
}

/// For a move, a master stops renewing its lease only if the lease ends before the orders. Else moves could overlap.
#[test]
fn master_ignores_move_orders_that_expire_before_its_lease() {
    let (mut cluster, ..) = hand_over();
    // The orders arrive after 15.5 s and expire after 20 s. The remaining 4.5 s are shorter than the lease of 5 s.
    cluster.orders_delay = Duration::from_millis(15_500);
    cluster.run(26_000);
    cluster.check(&expect![[r#"
        23.309 n1 prepares g1 for n2: SyncOffsets
        23.317 n1 prepares g1 for n2: NotifyProducers
        masters n1 n2 n3
    "#]]);
}

#[test]
fn mover_does_not_repeat_orders_for_an_unnecessary_move() {
    let (mut cluster, node, holder) = hand_over();
    // The report of the present master arrives only after the test has also drained the target node of the move.
    cluster.cut.insert((node.min(holder), node.max(holder)));
    cluster.run(300);
    let next = (1..=NODES).map(NodeId).find(|next| ![node, holder].contains(next)).unwrap();
    cluster.change(&Change::Drain { node: next, draining: true });
    cluster.run(300);
    cluster.cut.clear();
    cluster.run(10_000);
    cluster.check(&expect![[r#"
        23.309 n1 prepares g1 for n2: SyncOffsets
        23.317 n1 prepares g1 for n2: NotifyProducers
        masters n1 n2 n3
    "#]]);
}

#[test]
fn system_master_sends_no_orders_after_an_outdated_report() {
    let (mut cluster, node, holder) = hand_over();
    let mut gets_orders = |process: u64, stamp: Instant| {
        let report = Report { process, stamp, serves: Vec::new(), prepared: None, rejected: None };
        let message = Message::Report(report);
        cluster.wire.clear();
        cluster.step(holder, NodeInput::Message { from: node, group: GroupId::SYSTEM, message });
        cluster.wire.iter().any(|(.., message)| matches!(message, Message::Orders(orders) if orders.stamp == stamp))
    };
    assert!(gets_orders(7, Instant(9)));
    assert!(gets_orders(7, Instant(9)), "a duplicate report gets orders again");
    assert!(!gets_orders(7, Instant(8)));
    assert!(gets_orders(8, Instant(1)), "a new process has a new clock");
}

#[test]
#[should_panic(expected = "the options leave a master enough time to hand over before its orders expire")]
fn node_panics_if_its_lease_leaves_no_time_for_a_move() {
    drop(Cluster::new(1, Options { lease: Duration::from_secs(20), ..Options::default() }));
}

#[test]
#[should_panic(expected = "the caller proposes only valid system records to the system group")]
fn proposing_an_invalid_system_record_panics() {
    let mut cluster = spread(Options::default());
    let propose = Input::Propose { id: ProposalId(1), entry: "no record".into() };
    cluster.step(NodeId(1), NodeInput::Group { group: GroupId::SYSTEM, input: propose });
}

#[test]
fn next_token_holder_continues_the_move_of_a_stopped_holder() {
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
        25.200 n3 stops
        30.028 n1 serves g0 as e2
        30.450 n1 serves g3 as e3
        51.030 n1 prepares g1 for n2: SyncOffsets
        51.032 n1 prepares g1 for n2: NotifyProducers
        51.041 n2 serves g1 as e4
        52.430 n1 prepares g3 for n2: SyncOffsets
        52.432 n1 prepares g3 for n2: NotifyProducers
        52.441 n2 serves g3 as e4
        masters n2 n2 n2
    "#]]);
}

#[test]
fn node_sends_no_messages_after_its_storage_fails() {
    let mut cluster = spread(Options::default());
    let failed = drain(&mut cluster);
    cluster.run(110);
    cluster.step(failed, NodeInput::StorageFailed);
    let records = cluster.nodes[&failed].records.len();
    cluster.print(&format!("the storage of {failed} fails"));
    // First, the cluster delivers the messages that the node sent before its storage failed.
    cluster.run(2);
    for _ in 0..10_000 {
        cluster.run(1);
        assert!(cluster.wire.iter().all(|(_, from, ..)| *from != failed), "{:?}", cluster.wire);
    }
    let id = ProposalId(1);
    cluster.step(failed, NodeInput::Group { group: GroupId(1), input: Input::Propose { id, entry: "x".into() } });
    let host = &cluster.nodes[&failed];
    assert_eq!((host.node.as_ref().unwrap().next_tick(cluster.now), host.records.len()), (None, records));
    cluster.check(&expect![[r#"
        23.309 n1 prepares g1 for n2: SyncOffsets
        23.310 the storage of n1 fails
        28.026 n3 serves g1 as e4
        33.312 n1 rejects: this node is not the master and knows no master: propose again later or on another node
        masters n3 n2 n3
    "#]]);
}

/// Node 3 is master of the system group and of paxos group 1. It reaches node 2, but not node 4, the next master.
#[test]
fn master_hands_over_while_it_reaches_only_one_other_node() {
    let mut cluster = Cluster::of(vec![vec![1, 2, 3], vec![1, 3, 4]], Options::default());
    cluster.run(10_000);
    let master = NodeId(3);
    assert_eq!([GroupId::SYSTEM, GroupId(1)].map(|group| cluster.master(group)), [Some(master); 2]);
    cluster.output.clear();
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
fn system_group_drops_invalid_and_duplicate_records() {
    let mut cluster = spread(Options::default());
    let master = cluster.master(GroupId::SYSTEM).unwrap();
    let last =
        |cluster: &Cluster| cluster.nodes[&master].node.as_ref().unwrap().group(GroupId::SYSTEM).unwrap().last().slot;
    let handle_event = |cluster: &mut Cluster, entry: Vec<u8>| {
        let message = Message::Forward { entry: entry.into() };
        cluster.step(master, NodeInput::Message { from: NodeId(1), group: GroupId::SYSTEM, message });
    };
    let before = last(&cluster).0;
    for stamp in 1..5 {
        let renewal = Change::Alive { node: NodeId(1), liveness: 7, last: Slot(99), stamp: Instant(stamp) };
        handle_event(&mut cluster, renewal.encode());
    }
    assert_eq!(last(&cluster).0, before + 1);
    let drain = |draining| Change::Drain { node: NodeId(1), draining }.encode();
    for draining in [true, false, true] {
        handle_event(&mut cluster, drain(draining));
        cluster.run(10);
    }
    handle_event(&mut cluster, b"no record".to_vec());
    cluster.run(10);
    assert_eq!(last(&cluster).0, before + 4);
}

/// Random reports and orders may cause moves to fail. But a paxos group never has two masters, and each paxos group has
/// a master in the end.
#[test]
fn paxos_group_never_has_two_masters_despite_random_orders() {
    const STEPS: [Step; 5] = [
        Step::FIRST,
        Step::Prepare(Preparation::NotifyProducers),
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
        // A node that has obeyed a fence obeys no lower fence, so the test uses the greatest fences in its last rounds.
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
            Message::Report(Report { process, stamp, serves, prepared, rejected: Some((fence, step)) })
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
    assert_eq!(obeyed.len(), 2 * STEPS.len(), "both nodes of a move obeyed each step: {obeyed:?}");
    cluster.run(60_000);
    let masters = (0..=3).filter(|group| cluster.master(GroupId(*group)).is_some()).count();
    assert_eq!(masters, 4, "{}", cluster.output);
}
