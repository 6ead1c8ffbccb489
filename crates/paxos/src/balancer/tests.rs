use expect_test::expect;
use proptest::prelude::*;

use super::*;

fn member(node: u32) -> Member {
    Member { node: NodeId(node), capacity: 1, may_master: true }
}

fn load(group: u32, weight: u64, replicas: &[u32]) -> Load {
    Load { group: GroupId(group), weight, replicas: replicas.iter().map(|node| NodeId(*node)).collect() }
}

fn nodes(count: u32) -> Vec<Member> {
    (1..=count).map(member).collect()
}

/// Returns paxos groups of equal weight. Every node may be the master of each of them.
fn alike(groups: u32, nodes: u32) -> Vec<Load> {
    let all: Vec<u32> = (1..=nodes).collect();
    (1..=groups).map(|group| load(group, 7, &all)).collect()
}

fn on(node: u32, groups: &[Load]) -> Distribution {
    groups.iter().map(|load| (load.group, NodeId(node))).collect()
}

fn moves(from: &Distribution, to: &Distribution) -> usize {
    to.iter().filter(|(group, node)| from.get(group) != Some(node)).count()
}

fn counts(distribution: &Distribution) -> Vec<usize> {
    let mut counts: BTreeMap<NodeId, usize> = BTreeMap::new();
    for node in distribution.values() {
        *counts.entry(*node).or_default() += 1;
    }
    counts.into_values().collect()
}

const EXACT: Tolerance = Tolerance { start_percent: 0, goal_percent: 0 };

fn show(present: &Distribution, ideal: &Distribution) -> String {
    let line = |(group, node): (&GroupId, &NodeId)| match present.get(group) {
        Some(current) if current == node => format!("{group} {node}\n"),
        Some(current) => format!("{group} {current} -> {node}\n"),
        None => format!("{group} (none) -> {node}\n"),
    };
    ideal.iter().map(line).collect()
}

#[test]
fn balancer_distributes_masters_of_one_node_over_all_nodes() {
    let groups = alike(9, 3);
    let ideal = ideal(&nodes(3), &groups, &on(1, &groups), Tolerance::default());
    assert_eq!(counts(&ideal), [3, 3, 3]);
}

#[test]
fn balancer_moves_only_the_masters_of_a_drained_node() {
    let groups = alike(6, 3);
    let present = ideal(&nodes(3), &groups, &Distribution::new(), Tolerance::default());
    let mut members = nodes(3);
    members[1].may_master = false;
    expect![[r#"
        g1 n1
        g2 n2 -> n1
        g3 n3
        g4 n1
        g5 n2 -> n3
        g6 n3
    "#]]
    .assert_eq(&show(&present, &ideal(&members, &groups, &present, Tolerance::default())));
}

#[test]
fn balancer_moves_load_through_a_third_node_if_necessary() {
    // Node 3 has free capacity, but is not a replica of the paxos groups that node 1 has in excess. Node 2 takes one of
    // these paxos groups, and gives another paxos group to node 3.
    let mut groups: Vec<Load> = (1..=4).map(|group| load(group, 1, &[1, 2])).collect();
    groups.extend((5..=7).map(|group| load(group, 1, &[2, 3])));
    groups.extend((8..=9).map(|group| load(group, 1, &[3, 1])));
    let present = [1, 1, 1, 1, 2, 2, 2, 3, 3];
    let present = (1..).map(GroupId).zip(present.map(NodeId)).collect();
    expect![[r#"
        g1 n1 -> n2
        g2 n1
        g3 n1
        g4 n1
        g5 n2 -> n3
        g6 n2
        g7 n2
        g8 n3
        g9 n3
    "#]]
    .assert_eq(&show(&present, &ideal(&nodes(3), &groups, &present, Tolerance::default())));
}

#[test]
fn member_with_twice_the_capacity_carries_twice_the_load() {
    let groups = alike(12, 3);
    let mut members = nodes(3);
    members[2].capacity = 2;
    assert_eq!(counts(&ideal(&members, &groups, &on(1, &groups), Tolerance::default())), [3, 3, 6]);
}

#[test]
fn balancer_ignores_an_imbalance_below_its_start_threshold() {
    let groups = alike(40, 4);
    let spread = |counts: [u32; 4]| -> Distribution {
        let nodes = (1..=4).flat_map(|node| (0..counts[node as usize - 1]).map(move |_| NodeId(node)));
        (1..).map(GroupId).zip(nodes).collect()
    };
    let ideal_of = |present: &Distribution| ideal(&nodes(4), &groups, present, Tolerance::default());
    let within = spread([12, 8, 10, 10]);
    assert_eq!(ideal_of(&within), within);
    let beyond = spread([13, 7, 10, 10]);
    assert_eq!(counts(&ideal_of(&beyond)), [11, 9, 10, 10]);
}

#[test]
fn distribution_omits_paxos_group_without_an_eligible_master() {
    let groups = [load(1, 1, &[4]), load(2, 1, &[1])];
    let ideal = ideal(&nodes(2), &groups, &Distribution::new(), EXACT);
    assert_eq!(ideal.into_iter().collect::<Vec<_>>(), [(GroupId(2), NodeId(1))]);
    assert!(super::ideal(&[], &groups, &Distribution::new(), EXACT).is_empty());
}

#[test]
fn balancer_distributes_masters_of_idle_paxos_groups_evenly() {
    let groups: Vec<Load> = (1..=6).map(|group| load(group, 0, &[1, 2, 3])).collect();
    assert_eq!(counts(&ideal(&nodes(3), &groups, &on(2, &groups), EXACT)), [2, 2, 2]);
}

#[test]
fn balancer_computes_maximum_weights_without_overflow() {
    let mut members = nodes(40);
    members.iter_mut().take(20).for_each(|member| member.capacity = u32::MAX);
    let all: Vec<u32> = (1..=40).collect();
    let groups: Vec<Load> = (1..=40).map(|group| load(group, u64::MAX >> (group % 3), &all)).collect();
    assert_eq!(ideal(&members, &groups, &on(40, &groups), EXACT).len(), 40);
}

/// Random input of the balancer: members, paxos groups with their weights and replicas, and present masters.
#[derive(Clone, Debug)]
struct Case {
    members: Vec<Member>,
    groups: Vec<Load>,
    present: Distribution,
}

fn case(nodes: u32, groups: usize, weights: std::ops::Range<u64>, restricted: bool) -> impl Strategy<Value = Case> {
    let members = prop::collection::vec((1..3_u32, prop::bool::weighted(0.85)), 1..=nodes as usize);
    let groups = prop::collection::vec((weights, 1..1_u32 << nodes, 0..=nodes), 0..=groups);
    (members, groups).prop_map(move |(members, groups)| {
        let members: Vec<Member> = (1..)
            .zip(members)
            .map(|(node, (capacity, may_master))| Member {
                node: NodeId(node),
                capacity: if restricted { capacity } else { 1 },
                may_master: may_master || !restricted,
            })
            .collect();
        let replicas = |bits: u32| (1..=nodes).filter(move |node| !restricted || bits >> (node - 1) & 1 == 1);
        let present =
            (1..).map(GroupId).zip(groups.iter().map(|(.., master)| NodeId(*master))).filter(|(_, node)| node.0 > 0);
        let loads = (1..).zip(&groups).map(|(group, (weight, bits, _))| Load {
            group: GroupId(group),
            weight: *weight,
            replicas: replicas(*bits).map(NodeId).collect(),
        });
        Case { present: present.collect(), groups: loads.collect(), members }
    })
}

fn tolerances() -> impl Strategy<Value = Tolerance> {
    (0..60_u8, 0..30_u8).prop_map(|(start_percent, goal_percent)| Tolerance { start_percent, goal_percent })
}

/// Tries each distribution, and returns the lowest pair of cost and number of moves.
fn least(plan: &mut Plan, from: usize) -> (i128, usize) {
    if from == plan.groups.len() {
        return value(plan);
    }
    let mut least_found = (i128::MAX, 0);
    for member in plan.groups[from].may.clone() {
        plan.planned[member].load += plan.groups[from].weight;
        plan.groups[from].at = member;
        least_found = least_found.min(least(plan, from + 1));
        plan.planned[member].load -= plan.groups[from].weight;
    }
    least_found
}

fn value(plan: &Plan) -> (i128, usize) {
    let cost = plan.planned.iter().map(|member| member.cost(member.load)).sum();
    (cost, plan.groups.iter().filter(|placed| placed.current != Some(placed.at)).count())
}

/// Returns the cost and the number of moves of a distribution.
fn value_of(case: &Case, distribution: &Distribution, goal_percent: u8) -> (i128, usize) {
    let mut plan = Plan::new(&case.members, &case.groups, distribution, goal_percent);
    plan.place_unassigned();
    let current_plan = Plan::new(&case.members, &case.groups, &case.present, goal_percent);
    for (placed, current) in plan.groups.iter_mut().zip(current_plan.groups) {
        placed.current = current.current;
    }
    value(&plan)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn ideal_distribution_of_equal_weights_has_the_least_cost(
        case in case(4, 7, 5..6, true), goal_percent in 0..30_u8,
    ) {
        let tolerance = Tolerance { start_percent: 0, goal_percent };
        let found = ideal(&case.members, &case.groups, &case.present, tolerance);
        let mut plan = Plan::new(&case.members, &case.groups, &case.present, goal_percent);
        prop_assert_eq!(value_of(&case, &found, goal_percent), least(&mut plan, 0));
    }

    #[test]
    fn single_move_never_improves_the_ideal_distribution(case in case(4, 9, 0..100, true), goal in 0..30_u8) {
        let found = ideal(&case.members, &case.groups, &case.present, Tolerance { start_percent: 0, goal_percent: goal });
        let value = value_of(&case, &found, goal);
        let able = |node: &&NodeId| case.members.iter().any(|member| member.node == **node && member.may_master);
        for load in &case.groups {
            for node in load.replicas.iter().filter(able) {
                let mut other = found.clone();
                other.insert(load.group, *node);
                prop_assert!(value_of(&case, &other, goal) >= value, "{} to {}", load.group, node);
            }
        }
    }

    #[test]
    fn member_loads_stay_within_the_documented_bounds(case in case(5, 30, 1..1000, false), goal in 0..30_u8) {
        let tolerance = Tolerance { start_percent: goal, goal_percent: goal };
        let found = ideal(&case.members, &case.groups, &case.present, tolerance);
        let mut plan = Plan::new(&case.members, &case.groups, &found, goal);
        plan.place_unassigned();
        let heaviest = plan.groups.iter().map(|placed| placed.weight).max().unwrap_or(0);
        for member in &plan.planned {
            prop_assert!(member.load <= member.high.max(member.share + heaviest + 1));
            prop_assert!(member.load >= member.low.min(member.share - heaviest));
        }
    }

    #[test]
    fn balancer_does_not_change_an_ideal_distribution(case in case(5, 20, 0..50, true), tolerance in tolerances()) {
        let once = ideal(&case.members, &case.groups, &case.present, tolerance);
        prop_assert_eq!(&ideal(&case.members, &case.groups, &once, tolerance), &once);
    }

    #[test]
    fn each_move_reduces_the_number_of_remaining_moves_by_one(case in case(4, 12, 3..4, true), goal_percent in 0..30_u8) {
        let tolerance = Tolerance { start_percent: goal_percent, goal_percent };
        let mut present = case.present.clone();
        let mut left = ideal(&case.members, &case.groups, &present, tolerance);
        while moves(&present, &left) > 0 {
            let before = moves(&present, &left);
            let (group, node) = left.iter().find(|(group, node)| present.get(group) != Some(node)).unwrap();
            present.insert(*group, *node);
            left = ideal(&case.members, &case.groups, &present, tolerance);
            prop_assert_eq!(moves(&present, &left), before - 1);
        }
    }

    #[test]
    fn balancer_keeps_eligible_masters_if_loads_are_within_tolerance(case in case(5, 20, 0..50, true), goal in 0..30_u8) {
        let tolerance = Tolerance { start_percent: 255, goal_percent: goal };
        let mut plan = Plan::new(&case.members, &case.groups, &case.present, goal);
        plan.place_unassigned();
        let found = ideal(&case.members, &case.groups, &case.present, tolerance);
        for placed in &plan.groups {
            if let Some(current) = placed.current.filter(|_| !plan.is_off_by(255)) {
                prop_assert_eq!(found[&placed.group], plan.planned[current].node);
            }
        }
    }

    #[test]
    fn ideal_distribution_does_not_depend_on_the_input_order(case in case(5, 15, 0..50, true), tolerance in tolerances()) {
        let mut turned = case.clone();
        turned.members.reverse();
        turned.groups.reverse();
        turned.groups.iter_mut().for_each(|load| load.replicas.reverse());
        prop_assert_eq!(
            ideal(&case.members, &case.groups, &case.present, tolerance),
            ideal(&turned.members, &turned.groups, &turned.present, tolerance),
        );
    }

    #[test]
    fn balancer_moves_no_master_between_remaining_members(count in 2..9_u32, groups in 1..120_u32) {
        let loads = alike(groups, count + 1);
        let few = ideal(&nodes(count), &loads, &Distribution::new(), EXACT);
        let many = ideal(&nodes(count + 1), &loads, &few, EXACT);
        let share = (groups / (count + 1)) as usize;
        prop_assert_eq!(moves(&few, &many), share);
        let again = ideal(&nodes(count), &loads, &many, EXACT);
        prop_assert_eq!(moves(&many, &again), many.values().filter(|node| node.0 == count + 1).count());
    }

    #[test]
    fn balancer_moves_few_masters_after_the_addition_of_a_member(
        weights in prop::collection::vec(50..150_u64, 40..80), count in 2..6_u32,
    ) {
        let all: Vec<u32> = (1..=count + 1).collect();
        let groups: Vec<Load> = (1..).zip(&weights).map(|(group, weight)| load(group, *weight, &all)).collect();
        let few = ideal(&nodes(count), &groups, &Distribution::new(), Tolerance::default());
        let many = ideal(&nodes(count + 1), &groups, &few, Tolerance::default());
        let share = groups.len() / (count as usize + 1);
        prop_assert!(moves(&few, &many) <= 2 * share, "{} of {}, share {share}", moves(&few, &many), groups.len());
    }
}
