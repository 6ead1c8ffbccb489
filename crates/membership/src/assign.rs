//! Plan that assigns an owner to each shard. The plan is a pure function of the view, so members with the same view
//! compute the same plan.
//!
//! The plan is sticky and balanced. A shard stays with its live owner unless the owner has more shards than its share.
//! The shares of two members differ by at most one shard. If a member joins, only the shards of its new share move. If
//! a member leaves, only the shards of this member move. Rendezvous hashing (Thaler and Ravishankar, 1998) selects the
//! shards that move and their new owners, so members with the same view always agree.
//! docs/decisions/0100-assign-shards-by-sticky-shares.md compares this plan with a hash ring.
//!
//! The plan does not exclude conflicts: two members with different views may plan to own the same shard. The engine
//! then grants the claim to only one of the members.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use domain::ShardId;

use crate::MemberId;

/// Returns the planned owner of every shard whose number is below `shards`. The plan depends on the current claims and
/// on the members that may own shards. The plan is empty if there are no members. The function ignores claims of
/// members outside `members`, and claims of shards whose number is out of range.
#[must_use]
pub fn plan(
    claims: &BTreeMap<ShardId, MemberId>,
    members: &BTreeSet<MemberId>,
    shards: u16,
) -> BTreeMap<ShardId, MemberId> {
    if members.is_empty() {
        return BTreeMap::new();
    }
    let mut plan = BTreeMap::new();
    let mut capacity = BTreeMap::new();
    for (member, held, share) in shares(claims, members, shards) {
        capacity.insert(member, share.saturating_sub(held.len()));
        // A member that holds more shards than its share keeps the shards for which its weight is highest.
        let retained = held.into_iter().take(share);
        plan.extend(retained.map(|shard| (shard, member)));
    }
    for shard in (0..shards).map(ShardId) {
        if plan.contains_key(&shard) {
            continue;
        }
        let available = capacity.iter().filter(|(_, room)| **room > 0).map(|(member, _)| *member);
        let member = available
            .max_by_key(|member| weight(shard, *member))
            .expect("the sum of all shares equals the number of shards");
        *capacity.get_mut(&member).expect("the map `capacity` contains the member") -= 1;
        plan.insert(shard, member);
    }
    plan
}

/// Returns each member with its current shards, ordered by descending weight, and with the size of its share. Shares
/// have at most two sizes, which differ by one shard. Members that hold more shards than the smaller size get the
/// larger shares first, because fewer shards then move. The remaining larger shares go to the other members with the
/// lowest ids. This choice does not depend on the number of shards that these members hold, because that number changes
/// while the members take their planned shards.
fn shares(
    claims: &BTreeMap<ShardId, MemberId>,
    members: &BTreeSet<MemberId>,
    shards: u16,
) -> Vec<(MemberId, Vec<ShardId>, usize)> {
    let mut held: BTreeMap<MemberId, Vec<ShardId>> = members.iter().map(|member| (*member, Vec::new())).collect();
    for (shard, member) in claims.range(..ShardId(shards)) {
        if let Some(held) = held.get_mut(member) {
            held.push(*shard);
        }
    }
    let (share, larger) = (usize::from(shards) / members.len(), usize::from(shards) % members.len());
    let mut held: Vec<(MemberId, Vec<ShardId>)> = held.into_iter().collect();
    held.sort_by_key(|(member, held)| (held.len() <= share, *member));
    let with_share = held.into_iter().enumerate().map(|(at, (member, mut held))| {
        held.sort_by_key(|shard| Reverse(weight(*shard, member)));
        (member, held, share + usize::from(at < larger))
    });
    with_share.collect()
}

/// Returns the weight of `member` for `shard`. The member with the highest weight gets the shard. The result must be
/// the same on every machine and in every build, so that members of different builds compute the same plan.
fn weight(shard: ShardId, member: MemberId) -> (u64, MemberId) {
    let halves = [(member.0 >> 64) & u128::from(u64::MAX), member.0 & u128::from(u64::MAX)];
    let halves = halves.map(|half| u64::try_from(half).expect("half of a 128-bit id fits into 64 bits"));
    let hash = halves.into_iter().fold(mix(u64::from(shard.0)), |hash, half| mix(hash ^ half));
    (hash, member)
}

/// Mixes the bits of `value` like SplitMix64 (Steele, Lea and Flood, 2014): every input bit affects every output bit.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests;
