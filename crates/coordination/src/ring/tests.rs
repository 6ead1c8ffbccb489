use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const MEMBERS: usize = 100;
const KEYS: usize = 100_000;
const SLACK: usize = 25;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|member| format!("host-{member}")).collect()
}

fn keys() -> Vec<String> {
    (0..KEYS).map(|key| format!("customer/{key}")).collect()
}

/// Returns the number of keys whose owner in `after` differs from their owner in `before`.
fn moved(before: &BTreeMap<&str, &str>, after: &BTreeMap<&str, &str>) -> usize {
    assert_eq!(before.len(), after.len());
    before.iter().filter(|(key, member)| after[*key] != **member).count()
}

fn loads<'a>(assigned: &BTreeMap<&str, &'a str>) -> BTreeMap<&'a str, usize> {
    let mut loads = BTreeMap::new();
    assigned.values().for_each(|member| *loads.entry(*member).or_insert(0) += 1);
    loads
}

/// When one of n members joins or leaves, at most 1.2 / n of all keys may move.
#[test]
fn ring_moves_few_keys_when_one_member_joins_or_leaves() {
    let (names, keys) = (names(MEMBERS + 1), keys());
    let ring = Ring::new(&names[..MEMBERS]);
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let share = ring.share(KEYS, SLACK);
    let before = ring.assign(keys.iter().copied(), share);
    let most = loads(&before).into_values().max().unwrap();
    assert!(loads(&before).len() == MEMBERS && most <= share, "{most}");
    let left = Ring::new(names[..MEMBERS].iter().filter(|name| **name != names[17]).cloned());
    let after = left.assign(keys.iter().copied(), share);
    let count = moved(&before, &after);
    assert!(count * MEMBERS * 10 <= KEYS * 12, "{count} keys moved when one member left");
    assert!(loads(&after).into_values().max().unwrap() <= share);
    let ring = Ring::new(&names[..]);
    let after = ring.assign(keys.iter().copied(), share);
    let count = moved(&before, &after);
    assert!(count * (MEMBERS + 1) * 10 <= KEYS * 12, "{count} keys moved when one member joined");
    assert!(loads(&after).into_values().max().unwrap() <= share);
}

#[test]
fn ring_assigns_at_most_the_permitted_share_of_keys_to_each_member() {
    let (names, keys) = (names(10), keys());
    let keys: Vec<&str> = keys[..1_000].iter().map(String::as_str).collect();
    let ring = Ring::new(&names[..]);
    let (share, loose_share) = (ring.share(1_000, 0), ring.share(1_000, 1_000));
    let tight = ring.assign(keys.iter().copied(), share);
    assert!(loads(&tight).into_values().all(|load| load == 100), "{:?}", loads(&tight));
    let loose = ring.assign(keys.iter().copied(), loose_share);
    assert!(
        keys.iter().all(|key| ring.owner(key.as_bytes()) == Some(loose[key])),
        "with a loose bound, the owner has the key"
    );
    assert!(loads(&loose).into_values().any(|load| load > 100), "without a bound, some member has more than 100 keys");
}

/// The expected values are fixed, because processes of two builds must agree on the owners.
#[test]
fn ring_computes_the_same_owners_in_every_build() {
    let names = names(5);
    let ring = Ring::new(&names[..]);
    let owners: Vec<_> = ["", "a", "customer/7"].iter().map(|key| ring.owners(key.as_bytes(), 2)).collect();
    assert_eq!(owners, [["host-4", "host-3"], ["host-2", "host-1"], ["host-0", "host-1"]]);
    assert_eq!(Ring::default().owner(b"a"), None);
    assert!(Ring::default().assign(["a"], 1).is_empty());
}

proptest! {
    #[test]
    fn ring_ignores_order_and_duplicates_of_member_names(
        mut names in proptest::collection::vec("[a-z]{1,4}", 1..20),
        key: u64,
    ) {
        let ring = Ring::new(&names[..]);
        names.reverse();
        names.extend(names.clone());
        prop_assert_eq!(&ring, &Ring::new(&names[..]));
        let owners = ring.owners(&key.to_be_bytes(), usize::MAX);
        prop_assert_eq!(owners.first().copied(), ring.owner(&key.to_be_bytes()));
        let all: BTreeSet<&str> = owners.iter().copied().collect();
        prop_assert!(all.len() == owners.len() && all.len() == ring.members().len());
        // If the owner of the key leaves, the next member in `owners` becomes the owner.
        let left = Ring::new(ring.members().filter(|member| *member != owners[0]));
        prop_assert_eq!(left.owner(&key.to_be_bytes()), owners.get(1).copied());
    }
}
