//! A bounded memory of things that are cheap to keep and dear to make.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, Mutex};

/// Keeps the values used last, in two generations: when the young one is full, it becomes the old one, and the old
/// one goes. So at most twice `generation_len` values stay, and a value in use never leaves.
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

    /// The value of `key`: the kept one if `fits` says that it is that (another key may have the same hash, and a
    /// value may be out of date), or what `make` makes.
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
        self.keep(hash, value.clone());
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

    fn keep(&self, hash: u64, value: Arc<V>) {
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
