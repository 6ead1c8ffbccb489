//! Who should own which shard: a pure function of the view, the same for every member that has the same view.
//!
//! Sticky and balanced. A shard stays with its living owner unless that one has more than its share; shares differ by
//! at most one. So a member that joins takes only its share, and when one leaves, only its shards move. Which shards
//! move, and where to, is chosen by rendezvous hashing (Thaler and Ravishankar, 1998), so that members with the same
//! view never choose differently. Against a ring of points: docs/decisions/0100-sticky-shares.md.
//!
//! What it does not do: exclude anyone. Two members with different views may both want a shard; the claim decides.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use domain::ShardId;

use crate::MemberId;

/// The owner of every shard below `shards`, given who holds what now and who is to hold; empty without members.
/// Claims of others than `members`, and of shards out of range, count as free and are not in the answer.
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
    let mut room = BTreeMap::new();
    for (member, held, share) in shares(claims, members, shards) {
        room.insert(member, share.saturating_sub(held.len()));
        // Beyond its share it keeps those that it would be given first.
        let kept = held.into_iter().take(share);
        plan.extend(kept.map(|shard| (shard, member)));
    }
    for shard in (0..shards).map(ShardId) {
        if plan.contains_key(&shard) {
            continue;
        }
        let with_room = room.iter().filter(|(_, room)| **room > 0).map(|(member, _)| *member);
        let member = with_room.max_by_key(|member| weight(shard, *member)).expect("the shares add up to all shards");
        *room.get_mut(&member).expect("it has room") -= 1;
        plan.insert(shard, member);
    }
    plan
}

/// Each member with the shards that it holds, best loved first, and how many it should have. Those who hold most get
/// the larger shares, so that nothing moves for the sake of the odd ones.
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
    let mut held: Vec<(MemberId, Vec<ShardId>)> = held.into_iter().collect();
    held.sort_by_key(|(member, held)| (Reverse(held.len()), *member));
    let (share, larger) = (usize::from(shards) / members.len(), usize::from(shards) % members.len());
    let with_share = held.into_iter().enumerate().map(|(at, (member, mut held))| {
        held.sort_by_key(|shard| Reverse(weight(*shard, member)));
        (member, held, share + usize::from(at < larger))
    });
    with_share.collect()
}

/// How much `member` should have `shard`: the highest wins. The same on every machine and in every build, or members
/// of two builds would not agree.
fn weight(shard: ShardId, member: MemberId) -> (u64, MemberId) {
    let halves = [(member.0 >> 64) & u128::from(u64::MAX), member.0 & u128::from(u64::MAX)];
    let halves = halves.map(|half| u64::try_from(half).expect("a half has 64 bits"));
    let hash = halves.into_iter().fold(mix(u64::from(shard.0)), |hash, half| mix(hash ^ half));
    (hash, member)
}

/// The step of SplitMix64 (Steele, Lea and Flood, 2014): every input bit reaches every output bit.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests;
