//! Who owns which key, without a leader: a pure function of the members, the same for all who know the same members (seed 002).
//!
//! By rendezvous hashing (Thaler and Ravishankar, 1998): each member has a weight for each key, and the heaviest owns it. So of *n* members one
//! that leaves moves its own keys only, one *n*th of all, and they spread over all others. Where no member may have more than its
//! share, [`Ring::assign`] deals out a set of keys under a bound, after Mirrokni, Thorup and Zadimoghaddam (2018).
//!
//! What it does not do: exclude anyone. While members come and go two processes know different ones, and both own a key. Where that must not
//! be, the owner takes a [`Lock`](crate::recipes::Lock) of the key's name, and writes under its term.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

/// Those who share the keys. Built of the same names in any order, it is the same.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ring {
    /// Each once, in order, with the hash of its name.
    members: Vec<(String, u64)>,
}

impl Ring {
    pub fn new<T: Into<String>>(members: impl IntoIterator<Item = T>) -> Self {
        let hashed = members.into_iter().map(Into::into).map(|name| {
            let hash = xxh3_64(name.as_bytes());
            (name, hash)
        });
        let mut members: Vec<(String, u64)> = hashed.collect();
        members.sort_unstable();
        members.dedup();
        Ring { members }
    }

    pub fn members(&self) -> impl ExactSizeIterator<Item = &str> {
        self.members.iter().map(|(name, _)| name.as_str())
    }

    /// `None` if there are no members. One step for each member.
    #[must_use]
    pub fn owner(&self, key: &[u8]) -> Option<&str> {
        let key = xxh3_64(key);
        self.members.iter().max_by_key(|member| weight(key, member)).map(|(name, _)| name.as_str())
    }

    /// The first `count` members for a key, the owner first: who leaves is followed by the next.
    #[must_use]
    pub fn owners(&self, key: &[u8], count: usize) -> Vec<&str> {
        let mut members = self.by_weight(xxh3_64(key));
        members.truncate(count);
        members.into_iter().map(|at| self.members[at].0.as_str()).collect()
    }

    /// Deals out all of `keys`, each to the heaviest member that has room: none has more than `share` says ([`Ring::share`]). With less
    /// slack more keys move when members or keys come and go. Empty if there are no members.
    ///
    /// # Panics
    /// If all shares together are less than the keys.
    #[must_use]
    pub fn assign<'a>(&self, keys: impl IntoIterator<Item = &'a str>, share: usize) -> BTreeMap<&'a str, &str> {
        // In an order that has nothing to do with names, so that no kind of key is dealt out last.
        let mut keys: Vec<(u64, &str)> = keys.into_iter().map(|key| (xxh3_64(key.as_bytes()), key)).collect();
        keys.sort_unstable();
        keys.dedup();
        if self.members.is_empty() {
            return BTreeMap::new();
        }
        assert!(self.members.len().saturating_mul(share) >= keys.len(), "all shares together are less than the keys");
        let mut room = vec![share; self.members.len()];
        let mut assigned = BTreeMap::new();
        for (hash, key) in keys {
            let with_room = (0..room.len()).filter(|at| room[*at] > 0);
            let heaviest = with_room.max_by_key(|at| weight(hash, &self.members[*at]));
            let at = heaviest.expect("the shares are not less than the keys");
            room[at] -= 1;
            assigned.insert(key, self.members[at].0.as_str());
        }
        assigned
    }

    /// What each of the members has at most of `keys` keys, if that is `slack_percent` above the mean: 25, say.
    #[must_use]
    pub fn share(&self, keys: usize, slack_percent: usize) -> usize {
        let all = keys.saturating_mul(100 + slack_percent).div_ceil(100);
        all.div_ceil(self.members.len().max(1))
    }

    /// Members by their index, the heaviest first.
    fn by_weight(&self, key: u64) -> Vec<usize> {
        let mut members: Vec<usize> = (0..self.members.len()).collect();
        members.sort_unstable_by_key(|at| std::cmp::Reverse(weight(key, &self.members[*at])));
        members
    }
}

/// The same on every machine and in every build, or processes of two builds would not agree.
fn weight(key: u64, (name, hash): &(String, u64)) -> (u64, &str) {
    (mix(key ^ mix(*hash)), name)
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
