use proptest::prelude::*;

use super::*;

const SHARDS: u16 = 256;

fn member(number: u128) -> MemberId {
    // Spread as real ones are, though any ids would do.
    MemberId(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

fn members(count: u128) -> BTreeSet<MemberId> {
    (0..count).map(member).collect()
}

fn moved(before: &BTreeMap<ShardId, MemberId>, after: &BTreeMap<ShardId, MemberId>) -> usize {
    after.iter().filter(|(shard, owner)| before.get(shard).is_some_and(|before| before != *owner)).count()
}

/// Any claims of a dozen possible members, some living, some shards out of range; and the living.
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
    fn every_shard_has_a_living_owner_and_shares_differ_by_at_most_one((claims, members, shards) in a_view()) {
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
    fn a_plan_that_is_carried_out_is_planned_again((claims, members, shards) in a_view()) {
        let first = plan(&claims, &members, shards);
        prop_assert_eq!(plan(&first, &members, shards), first);
    }

    #[test]
    fn a_shard_moves_only_from_one_that_has_more_than_its_share((claims, members, shards) in a_view()) {
        prop_assume!(!members.is_empty());
        let plan = plan(&claims, &members, shards);
        let count = |of: &BTreeMap<ShardId, MemberId>, member: &MemberId| {
            of.range(..ShardId(shards)).filter(|(_, owner)| *owner == member).count()
        };
        for member in &members {
            let kept = plan.iter().filter(|(shard, owner)| *owner == member && claims.get(shard) == Some(member)).count();
            // All that it holds, or its whole share.
            prop_assert_eq!(kept, count(&claims, member).min(count(&plan, member)));
        }
    }

    #[test]
    fn a_join_moves_one_share_and_to_the_newcomer_only(count in 1..12_u128, from_nothing in any::<bool>(), shards in 0..300_u16) {
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
    fn a_leave_moves_only_the_leavers_shards(count in 2..12_u128, leaver in 0..12_u128, shards in 0..300_u16) {
        let leaver = member(leaver % count);
        let before = plan(&BTreeMap::new(), &members(count), shards);
        let mut left = members(count);
        left.remove(&leaver);
        let after = plan(&before, &left, shards);
        prop_assert!(after.iter().all(|(shard, owner)| before[shard] == *owner || before[shard] == leaver));
    }
}

#[test]
fn nobody_owns_anything_without_members() {
    let claims = BTreeMap::from([(ShardId(3), member(1))]);
    assert_eq!(plan(&claims, &BTreeSet::new(), SHARDS), BTreeMap::new());
}

/// Members of two builds must agree: what is planned here is planned by every later build.
#[test]
fn the_plan_is_the_same_in_every_build() {
    let plan = plan(&BTreeMap::new(), &members(3), SHARDS);
    let owners = plan.values().map(|owner| (0..3_u128).find(|number| member(*number) == *owner).unwrap());
    let numbers: String = owners.map(|number| number.to_string()).collect();
    assert_eq!(domain::id::fnv1a(numbers.as_bytes()), GOLDEN, "{numbers}");
}

const GOLDEN: u32 = 391_846_686;
