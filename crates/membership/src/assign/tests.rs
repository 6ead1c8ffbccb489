use proptest::prelude::*;

use super::*;

const SHARDS: u16 = 256;

fn member(number: u128) -> MemberId {
    // Returns a member id. The ids are spread over the id space like real ids, but the tests do not depend on this.
    MemberId(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

fn members(count: u128) -> BTreeSet<MemberId> {
    (0..count).map(member).collect()
}

fn moved(before: &BTreeMap<ShardId, MemberId>, after: &BTreeMap<ShardId, MemberId>) -> usize {
    after.iter().filter(|(shard, owner)| before.get(shard).is_some_and(|before| before != *owner)).count()
}

/// Strategy that generates claims, live members and a number of shards. Up to a dozen members hold claims, and only
/// some of them are live. Some claimed shards are out of range.
fn a_view() -> impl Strategy<Value = (BTreeMap<ShardId, MemberId>, BTreeSet<MemberId>, u16)> {
    let claims = proptest::collection::btree_map((0..400_u16).prop_map(ShardId), (0..12_u128).prop_map(member), 0..300);
    let members = proptest::collection::btree_set((0..12_u128).prop_map(member), 0..12);
    (claims, members, 0..300_u16)
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn plan_distributes_all_shards_evenly_over_the_live_members((claims, members, shards) in a_view()) {
        let plan = plan(&claims, &members, shards);
        if members.is_empty() {
            prop_assert!(plan.is_empty());
            return Ok(());
        }
        prop_assert_eq!(plan.keys().copied().collect::<Vec<_>>(), (0..shards).map(ShardId).collect::<Vec<_>>());
        let share = |member: &MemberId| plan.values().filter(|owner| *owner == member).count();
        let shares: Vec<usize> = members.iter().map(share).collect();
        prop_assert_eq!(shares.iter().sum::<usize>(), usize::from(shards), "an owner is not a member");
        prop_assert!(shares.iter().max().zip(shares.iter().min()).is_some_and(|(most, least)| most - least <= 1));
    }

    #[test]
    fn plan_does_not_change_after_members_execute_it((claims, members, shards) in a_view()) {
        let first = plan(&claims, &members, shards);
        prop_assert_eq!(plan(&first, &members, shards), first);
    }

    /// Members take and release shards one by one. A member may therefore compute the plan while other members have
    /// executed only a part of it.
    #[test]
    fn plan_does_not_change_while_members_execute_it(
        (claims, members, shards) in a_view(),
        done in proptest::collection::vec(0..3_u8, 300),
    ) {
        let first = plan(&claims, &members, shards);
        let mut partly = claims;
        for (shard, owner) in &first {
            match done[usize::from(shard.0)] {
                0 => {}
                1 if partly.get(shard) != Some(owner) => drop(partly.remove(shard)),
                _ => drop(partly.insert(*shard, *owner)),
            }
        }
        prop_assert_eq!(plan(&partly, &members, shards), first);
    }

    #[test]
    fn live_member_releases_only_the_shards_beyond_its_share((claims, members, shards) in a_view()) {
        prop_assume!(!members.is_empty());
        let plan = plan(&claims, &members, shards);
        let count = |of: &BTreeMap<ShardId, MemberId>, member: &MemberId| {
            of.range(..ShardId(shards)).filter(|(_, owner)| *owner == member).count()
        };
        for member in &members {
            let kept = plan.iter().filter(|(shard, owner)| *owner == member && claims.get(shard) == Some(member)).count();
            // A member with at most its share of shards keeps all of them. A member with more shards keeps as many
            // shards as its share.
            prop_assert_eq!(kept, count(&claims, member).min(count(&plan, member)));
        }
    }

    #[test]
    fn joining_member_takes_at_most_its_share_and_no_other_shards_move(
        count in 1..12_u128,
        from_nothing in any::<bool>(),
        shards in 0..300_u16,
    ) {
        let mut before = BTreeMap::new();
        for step in if from_nothing { count..=count } else { 1..=count } {
            before = plan(&before, &members(step), shards);
        }
        let after = plan(&before, &members(count + 1), shards);
        let newcomer = member(count);
        prop_assert!(moved(&before, &after) <= usize::from(shards).div_ceil(usize::try_from(count + 1).unwrap()));
        prop_assert!(after.iter().all(|(shard, owner)| before[shard] == *owner || *owner == newcomer));
    }

    #[test]
    fn plan_moves_only_the_shards_of_a_leaving_member(count in 2..12_u128, leaver in 0..12_u128, shards in 0..300_u16) {
        let leaver = member(leaver % count);
        let before = plan(&BTreeMap::new(), &members(count), shards);
        let mut left = members(count);
        left.remove(&leaver);
        let after = plan(&before, &left, shards);
        prop_assert!(after.iter().all(|(shard, owner)| before[shard] == *owner || before[shard] == leaver));
    }
}

#[test]
fn plan_without_members_is_empty() {
    let claims = BTreeMap::from([(ShardId(3), member(1))]);
    assert_eq!(plan(&claims, &BTreeSet::new(), SHARDS), BTreeMap::new());
}

/// Members of different builds must compute the same plan, so a later build must not change it.
#[test]
fn plan_equals_the_plan_of_earlier_builds() {
    let plan = plan(&BTreeMap::new(), &members(3), SHARDS);
    let owners = plan.values().map(|owner| (0..3_u128).find(|number| member(*number) == *owner).unwrap());
    let numbers: String = owners.map(|number| number.to_string()).collect();
    assert_eq!(domain::id::fnv1a(numbers.as_bytes()), GOLDEN, "{numbers}");
}

const GOLDEN: u32 = 391_846_686;
