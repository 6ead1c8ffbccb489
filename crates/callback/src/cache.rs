//! Bounded cache of values that are small but expensive to create.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, Mutex};

/// Caches the recently used values in two generations. When the young generation is full, it becomes the old
/// generation, and the cache drops the previous old generation. The cache contains at most twice `generation_len`
/// values. A caller may continue to use a value that the cache has dropped.
pub(crate) struct Cache<V> {
    hasher: RandomState,
    generation_len: usize,
    generations: Mutex<Generations<V>>,
}

struct Generations<V> {
    young: HashMap<u64, Arc<V>>,
    old: HashMap<u64, Arc<V>>,
}

impl<V> Cache<V> {
    pub(crate) fn new(generation_len: usize) -> Self {
        let generations = Mutex::new(Generations { young: HashMap::new(), old: HashMap::new() });
        Cache { hasher: RandomState::new(), generation_len, generations }
    }

    /// Returns the cached value of `key` if `fits` accepts it; otherwise, caches and returns the value that `make`
    /// creates. `fits` must reject a value of another key with the same hash, and an outdated value.
    pub(crate) fn get<E>(
        &self,
        key: impl Hash,
        fits: impl Fn(&V) -> bool,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Arc<V>, E> {
        let hash = self.hasher.hash_one(key);
        if let Some(value) = self.find(hash, fits) {
            return Ok(value);
        }
        let value = Arc::new(make()?);
        self.add(hash, value.clone());
        Ok(value)
    }

    fn find(&self, hash: u64, fits: impl Fn(&V) -> bool) -> Option<Arc<V>> {
        let mut generations = self.generations.lock().expect("no holder of this lock panics");
        if let Some(value) = generations.young.get(&hash) {
            return fits(value).then(|| value.clone());
        }
        let value = generations.old.remove(&hash).filter(|value| fits(value))?;
        self.insert(&mut generations, hash, value.clone());
        Some(value)
    }

    fn add(&self, hash: u64, value: Arc<V>) {
        let mut generations = self.generations.lock().expect("no holder of this lock panics");
        self.insert(&mut generations, hash, value);
    }

    fn insert(&self, generations: &mut Generations<V>, hash: u64, value: Arc<V>) {
        if generations.young.len() >= self.generation_len && !generations.young.contains_key(&hash) {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(hash, value);
    }
}

#[cfg(test)]
mod tests;
