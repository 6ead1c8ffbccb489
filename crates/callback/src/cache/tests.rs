use std::convert::Infallible;

use super::*;

fn get(cache: &Cache<u32>, key: u32) -> (u32, bool) {
    let mut is_created = false;
    let value = cache.get(
        key,
        |value| *value == key,
        || {
            is_created = true;
            Ok::<_, Infallible>(key)
        },
    );
    (*value.unwrap(), is_created)
}

#[test]
fn cache_creates_a_frequently_used_value_only_once() {
    let cache = Cache::new(100);
    assert_eq!(get(&cache, 0), (0, true));
    for other in 1..1000 {
        assert_eq!(get(&cache, 0), (0, false));
        assert_eq!(get(&cache, other), (other, true));
    }
}

#[test]
fn new_value_replaces_at_most_one_other_value_of_a_full_cache() {
    let cache = Cache::new(100);
    for key in 0..1000 {
        let before = cache.values.len();
        get(&cache, key);
        assert!((before..=100).contains(&cache.values.len()), "{before} values before value {key}");
    }
}

#[test]
fn cache_replaces_outdated_value() {
    let cache = Cache::new(100);
    let get = |want: u32| *cache.get("key", |value| *value == want, || Ok::<_, Infallible>(want)).unwrap();
    assert_eq!(get(1), 1);
    assert_eq!(get(2), 2);
    assert_eq!(get(2), 2);
}
