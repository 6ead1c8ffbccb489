//! Hash ring that assigns keys to members without a leader. The owner of a key depends only on the key and the members.
//! All processes that know the same members therefore compute the same owner.
//!
//! The ring uses rendezvous hashing (Thaler and Ravishankar, 1998). Each member has a weight for each key, and the
//! member with the greatest weight owns the key. If one of *n* members leaves, only its own keys move. These are about
//! one *n*th of all keys, and each of the other members gets some of them. To limit the number of keys of each member,
//! use [`Ring::assign`]. It uses an algorithm by Mirrokni, Thorup and Zadimoghaddam (2018).
//!
//! The ring does not prevent two members from owning the same key. While members join and leave, two processes may know
//! different sets of members, so each of them may compute that it owns the key. If an application cannot accept two
//! owners, the owner must acquire a [`Lock`](crate::recipes::Lock) named after the key and send the term of that lock
//! with every write.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

/// Members that share the keys. The ring does not depend on the order in which the caller lists the members.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ring {
    /// Name and hash of each member, sorted and without duplicates.
    members: Vec<(String, u64)>,
}

impl Ring {
    /// Creates a ring from the names of its members. The order of the names has no effect, and a repeated name counts
    /// once.
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

    /// Returns the names of the members, sorted and without duplicates.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &str> {
        self.members.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the owner of a key, or `None` if there are no members. Takes time linear in the number of members.
    #[must_use]
    pub fn owner(&self, key: &[u8]) -> Option<&str> {
        let key = xxh3_64(key);
        self.members.iter().max_by_key(|member| weight(key, member)).map(|(name, _)| name.as_str())
    }

    /// Returns the `count` members with the greatest weights for a key, the owner first. If the owner leaves, the next
    /// member in this list becomes the owner.
    #[must_use]
    pub fn owners(&self, key: &[u8], count: usize) -> Vec<&str> {
        let mut members = self.by_weight(xxh3_64(key));
        members.truncate(count);
        members.into_iter().map(|at| self.members[at].0.as_str()).collect()
    }

    /// Assigns each key to the member with the greatest weight among the members that have fewer than `share` keys.
    /// [`Ring::share`] computes `share`. With a smaller `share`, more keys move when the members or the keys change.
    /// Returns an empty map if there are no members.
    ///
    /// # Panics
    /// Panics if `share` times the number of members is less than the number of keys.
    #[must_use]
    pub fn assign<'a>(&self, keys: impl IntoIterator<Item = &'a str>, share: usize) -> BTreeMap<&'a str, &str> {
        // The function assigns the keys in the order of their hashes. In alphabetical order, only keys at the end of
        // the alphabet would go to members that do not have the greatest weight.
        let mut keys: Vec<(u64, &str)> = keys.into_iter().map(|key| (xxh3_64(key.as_bytes()), key)).collect();
        keys.sort_unstable();
        keys.dedup();
        if self.members.is_empty() {
            return BTreeMap::new();
        }
        assert!(
            self.members.len().saturating_mul(share) >= keys.len(),
            "`share` times the number of members is at least the number of keys"
        );
        let mut free = vec![share; self.members.len()];
        let mut assigned = BTreeMap::new();
        for (hash, key) in keys {
            let not_full = (0..free.len()).filter(|at| free[*at] > 0);
            let heaviest = not_full.max_by_key(|at| weight(hash, &self.members[*at]));
            let at = heaviest.expect("at least one member has fewer than `share` keys");
            free[at] -= 1;
            assigned.insert(key, self.members[at].0.as_str());
        }
        assigned
    }

    /// Returns the largest number of keys per member, for the parameter `share` of [`Ring::assign`]. The result is
    /// `slack_percent` percent (for example 25) above the mean number of keys per member, if there are `keys` keys.
    #[must_use]
    pub fn share(&self, keys: usize, slack_percent: usize) -> usize {
        let all = keys.saturating_mul(100 + slack_percent).div_ceil(100);
        all.div_ceil(self.members.len().max(1))
    }

    /// Returns the indexes of the members in descending order of their weights for `key`.
    fn by_weight(&self, key: u64) -> Vec<usize> {
        let mut members: Vec<usize> = (0..self.members.len()).collect();
        members.sort_unstable_by_key(|at| std::cmp::Reverse(weight(key, &self.members[*at])));
        members
    }
}

/// Returns the weight of a member for a key. The weight must be the same on every machine and in every build. Otherwise
/// processes of two builds would compute different owners.
fn weight(key: u64, (name, hash): &(String, u64)) -> (u64, &str) {
    (mix(key ^ mix(*hash)), name)
}

/// Computes one step of SplitMix64 (Steele, Lea and Flood, 2014). Every input bit affects every output bit.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests;
