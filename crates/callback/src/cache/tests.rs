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
    let cache = Cache::new(4);
    assert_eq!(get(&cache, 0), (0, true));
    for other in 1..100 {
        assert_eq!(get(&cache, other), (other, true));
        assert_eq!(get(&cache, 0), (0, false));
    }
}

#[test]
fn cache_contains_at_most_two_generations_of_values() {
    let cache = Cache::new(4);
    for key in 0..1000 {
        get(&cache, key);
    }
    let generations = cache.generations.lock().unwrap();
    assert!(generations.young.len() + generations.old.len() <= 8);
}

#[test]
fn cache_replaces_outdated_value() {
    let cache = Cache::new(4);
    let get = |want: u32| *cache.get("key", |value| *value == want, || Ok::<_, Infallible>(want)).unwrap();
    assert_eq!(get(1), 1);
    assert_eq!(get(2), 2);
    assert_eq!(get(2), 2);
}
