//! Measures how evenly a plan spreads shards over members, and how many shards move when a member joins. Compares
//! sticky shares with a hash ring.
#![expect(clippy::print_stdout, reason = "the example prints a table")]

use std::collections::{BTreeMap, BTreeSet};

use domain::ShardId;
use domain::id::SHARDS;
use membership::{MemberId, assign};

/// Number of points of each member on the hash ring. The library ringpop uses the same number.
const POINTS_PER_MEMBER: u64 = 100;
const TRIALS: u64 = 200;

type Plan = BTreeMap<ShardId, MemberId>;

fn main() {
    println!(
        "members | ring: fewest-most shards of a member, largest share, shards moved by a join | \
         sticky: fewest-most shards of a member, shards moved by a join | shards that a join must move"
    );
    for count in 2..=10 {
        let (mut ring_spread, mut sticky_spread) = ((usize::MAX, 0), (usize::MAX, 0));
        let (mut ring_moved, mut sticky_moved) = (0, 0);
        for trial in 0..TRIALS {
            let members: Vec<MemberId> = (0..=count).map(|number| MemberId(wide(trial << 32 | number))).collect();
            let (before, after) = (set(&members[..members.len() - 1]), set(&members));
            let ring_before = ring(&before);
            ring_spread = spread(ring_spread, &ring_before, &before);
            ring_moved += moved(&ring_before, &ring(&after));
            let sticky_before = assign::plan(&Plan::new(), &before, SHARDS);
            sticky_spread = spread(sticky_spread, &sticky_before, &before);
            sticky_moved += moved(&sticky_before, &assign::plan(&sticky_before, &after, SHARDS));
        }
        let mean =
            |moved: usize| f64::from(u32::try_from(moved).expect("the counts fit into 32 bits")) / f64::from(200_u32);
        let fair = f64::from(SHARDS) / f64::from(u32::try_from(count).expect("the counts fit into 32 bits"));
        println!(
            "{count:7} | {}-{}, {:.2} of fair, {:.1} | {}-{}, {:.1} | {:.1}",
            ring_spread.0,
            ring_spread.1,
            f64::from(u32::try_from(ring_spread.1).expect("the counts fit into 32 bits")) / fair,
            mean(ring_moved),
            sticky_spread.0,
            sticky_spread.1,
            mean(sticky_moved),
            f64::from(SHARDS) / f64::from(u32::try_from(count + 1).expect("the counts fit into 32 bits")),
        );
    }
}

fn set(members: &[MemberId]) -> BTreeSet<MemberId> {
    members.iter().copied().collect()
}

fn ring(members: &BTreeSet<MemberId>) -> Plan {
    let points = members.iter().flat_map(|member| {
        let low = u64::try_from(member.0 & u128::from(u64::MAX)).expect("the masked value fits into 64 bits");
        (0..POINTS_PER_MEMBER).map(move |point| (mix(low ^ mix(point)), *member))
    });
    let points: BTreeMap<u64, MemberId> = points.collect();
    let owner = |shard: u16| {
        let at = mix(u64::from(shard) << 40);
        let (_, member) =
            points.range(at..).next().or_else(|| points.iter().next()).expect("there is at least one member");
        (ShardId(shard), *member)
    };
    (0..SHARDS).map(owner).collect()
}

fn spread((least, most): (usize, usize), plan: &Plan, members: &BTreeSet<MemberId>) -> (usize, usize) {
    let share = |member: &MemberId| plan.values().filter(|owner| *owner == member).count();
    let shares: Vec<usize> = members.iter().map(share).collect();
    (
        least.min(*shares.iter().min().expect("there is at least one member")),
        most.max(*shares.iter().max().expect("there is at least one member")),
    )
}

fn moved(before: &Plan, after: &Plan) -> usize {
    after.iter().filter(|(shard, owner)| before[shard] != **owner).count()
}

fn wide(number: u64) -> u128 {
    u128::from(mix(number)) << 64 | u128::from(mix(!number))
}

fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}
