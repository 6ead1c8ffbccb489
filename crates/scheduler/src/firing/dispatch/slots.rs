//! Slots of the service, of which each tenant gets a share. The dispatch queue also counts the unresolved keys in this way.
//!
//! docs/decisions/0191-bound-a-tenant-by-the-free-slots.md gives the reasons for the design.
//! docs/decisions/0212-count-unresolved-outcomes-apart-from-slots.md gives the reasons for the second number.

use std::collections::BTreeSet;

use domain::TenantId;

/// Largest ratio of a tenant's slots to the service's free slots. One tenant gets at most 4 of 5 slots, and two tenants
/// get at most 4 of 9 slots each. `n` tenants leave one of `4n + 1` slots free.
const PER_FREE_SLOT: usize = 4;

/// Slots of the service. A tenant may occupy fewer slots than its *share*, which is about [`PER_FREE_SLOT`] times the
/// number of free slots, times the tenant's weight. Slow targets of a few tenants therefore do not take all slots: a
/// tenant with few slots finds a free slot (dynamic thresholds; Choudhury and Hahne 1998).
#[derive(Debug)]
pub(super) struct Slots {
    max: usize,
    used: usize,
    /// Tenants that have reached their share, with the numbers of their slots divided by their weights.
    at_share: BTreeSet<(usize, TenantId)>,
}

/// Slots that one tenant occupies.
#[derive(Debug)]
pub(super) struct TenantSlots {
    used: usize,
    /// Factor of the tenant's share; at least 1.
    weight: usize,
    /// True if the tenant is in [`Slots::at_share`].
    is_at_share: bool,
}

impl Slots {
    pub(super) fn new(max: usize) -> Self {
        Slots { max: max.max(1), used: 0, at_share: BTreeSet::new() }
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn is_full(&self) -> bool {
        self.used >= self.max
    }

    /// Returns the number of slots below which a tenant may occupy a further slot. The last free slot is only for a tenant
    /// without slots.
    fn share(&self) -> usize {
        match self.max.saturating_sub(self.used) {
            0 => 0,
            free => (free - 1).saturating_mul(PER_FREE_SLOT) + 1,
        }
    }

    /// Returns whether the tenant may occupy a further slot. If the tenant has reached its share, the function adds
    /// the tenant to the list that [`Slots::next_below_share`] reads.
    pub(super) fn has_share(&mut self, tenant: TenantId, slots: &mut TenantSlots) -> bool {
        let has_share = slots.weighted() < self.share();
        if !has_share {
            slots.is_at_share = true;
            self.at_share.insert((slots.weighted(), tenant));
        }
        has_share
    }

    /// Sets the factor of the tenant's share.
    pub(super) fn weigh(&mut self, tenant: TenantId, slots: &mut TenantSlots, weight: usize) {
        self.change(tenant, slots, |slots| slots.weight = weight.max(1));
    }

    pub(super) fn occupy(&mut self, tenant: TenantId, slots: &mut TenantSlots) {
        self.change(tenant, slots, |slots| slots.used += 1);
        self.used += 1;
    }

    pub(super) fn free(&mut self, tenant: TenantId, slots: &mut TenantSlots) {
        assert!(slots.used > 0 && self.used > 0, "the tenant occupies a slot");
        self.change(tenant, slots, |slots| slots.used -= 1);
        self.used -= 1;
    }

    fn change(&mut self, tenant: TenantId, slots: &mut TenantSlots, change: impl FnOnce(&mut TenantSlots)) {
        let before = slots.weighted();
        change(slots);
        if slots.is_at_share {
            self.at_share.remove(&(before, tenant));
            self.at_share.insert((slots.weighted(), tenant));
        }
    }

    /// Returns a tenant that had reached its share and is now below it. The caller must set
    /// [`TenantSlots::is_at_share`] to false with [`TenantSlots::leave_share`].
    pub(super) fn next_below_share(&mut self) -> Option<TenantId> {
        let (weighted, tenant) = self.at_share.first().copied()?;
        if weighted >= self.share() {
            return None;
        }
        self.at_share.remove(&(weighted, tenant));
        Some(tenant)
    }
}

impl TenantSlots {
    /// Returns the state of a tenant without slots, whose share has the factor `weight`.
    pub(super) fn new(weight: usize) -> Self {
        TenantSlots { used: 0, weight: weight.max(1), is_at_share: false }
    }

    fn weighted(&self) -> usize {
        self.used / self.weight
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn is_at_share(&self) -> bool {
        self.is_at_share
    }

    pub(super) fn leave_share(&mut self) {
        self.is_at_share = false;
    }
}
