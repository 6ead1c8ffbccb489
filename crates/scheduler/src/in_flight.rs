//! Which schedules have an attempt in flight: asked by whoever answers a cancellation.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Mutex;

use domain::Incarnation;
use rustc_hash::FxHasher;

const STRIPES: usize = 16;

/// Counts, by incarnation, the keys from before their schedule is read until their outcome is durable.
///
/// So a cancellation that is durable *before* it looks here misses no attempt: one that is not here yet reads the
/// schedule after the cancellation, and does not start.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    // The order of these maps is never seen.
    stripes: [Mutex<HashMap<Incarnation, u32, BuildHasherDefault<FxHasher>>>; STRIPES],
}

impl InFlight {
    pub(crate) fn add(&self, incarnation: Incarnation) {
        let mut stripe = self.stripe(incarnation).lock().expect("no holder of this lock panics");
        *stripe.entry(incarnation).or_default() += 1;
    }

    pub(crate) fn remove(&self, incarnation: Incarnation) {
        let mut stripe = self.stripe(incarnation).lock().expect("no holder of this lock panics");
        match stripe.get_mut(&incarnation) {
            Some(1) => drop(stripe.remove(&incarnation)),
            Some(count) => *count -= 1,
            None => panic!("what leaves was in flight"),
        }
    }

    pub(crate) fn contains(&self, incarnation: Incarnation) -> bool {
        self.stripe(incarnation).lock().expect("no holder of this lock panics").contains_key(&incarnation)
    }

    pub(crate) fn clear(&self) {
        for stripe in &self.stripes {
            stripe.lock().expect("no holder of this lock panics").clear();
        }
    }

    fn stripe(&self, incarnation: Incarnation) -> &Mutex<HashMap<Incarnation, u32, BuildHasherDefault<FxHasher>>> {
        &self.stripes[usize::try_from(incarnation.0 % STRIPES as u128).unwrap_or(0)]
    }
}
