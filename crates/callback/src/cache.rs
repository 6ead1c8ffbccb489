//! Bounded cache of values that are small but expensive to create.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;

/// Caches the recently and frequently used values. A new value replaces at most a few others, so no caller drops many
/// values at once. A caller may continue to use a value that the cache has dropped.
pub(crate) struct Cache<V> {
    hasher: RandomState,
    values: quick_cache::sync::Cache<u64, Arc<V>>,
}

impl<V> Cache<V> {
    pub(crate) fn new(values_max: usize) -> Self {
        Cache { hasher: RandomState::new(), values: quick_cache::sync::Cache::new(values_max) }
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
        if let Some(value) = self.values.get(&hash).filter(|value| fits(value)) {
            return Ok(value);
        }
        let value = Arc::new(make()?);
        self.values.insert(hash, value.clone());
        Ok(value)
    }
}

#[cfg(test)]
mod tests;
