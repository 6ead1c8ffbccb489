//! What stands in a log, and the mastership that follows from it: a function of the log alone.

use crate::rules::{Compare, Rules};

/// The most slots that any configuration uses.
pub(crate) const SLOTS: usize = 4;

/// A slot's number from 1; 0 stands before the first.
pub(crate) type Slot = usize;

/// A ballot's number from 1; each belongs to the one node that opened it. 0 is below all of them.
pub(crate) type Ballot = u8;

/// Names one mastership. The epoch's number alone does not: see `Compare::Ballot`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Tenure {
    /// 0 while nobody ever was master.
    pub(crate) epoch: u8,
    pub(crate) ballot: Ballot,
}

impl Tenure {
    pub(crate) fn is(self, other: Tenure, rules: &Rules) -> bool {
        self.epoch == other.epoch && (rules.compare < Compare::Ballot || self.ballot == other.ballot)
    }
}

/// What a BeMaster says of the mastership that it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Claim {
    /// That its lease is over, if `lease_slot` was the last that renewed it.
    Waited { tenure: Tenure, lease_slot: u8 },
    /// That it is the claimer's own.
    Own(Tenure),
    /// That its master gave it up for the claimer.
    Consent(Tenure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Value {
    Data,
    /// And whether by its liveness.
    BeMaster(Claim, bool),
}

/// An entry, with the ballot that it was first proposed under and that ballot's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) ballot: Ballot,
    pub(crate) node: u8,
    pub(crate) value: Value,
}

/// Entries without a gap, from slot 1 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Log([Option<Entry>; SLOTS]);

impl Log {
    pub(crate) fn len(&self) -> Slot {
        self.0.iter().flatten().count()
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<Entry> {
        self.0.get(slot.checked_sub(1)?).copied().flatten()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        self.0.iter().copied().flatten()
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        let len = self.len();
        self.0[len] = Some(entry);
    }

    /// The entries up to `slot`, inclusive.
    pub(crate) fn prefix(mut self, slot: Slot) -> Log {
        self.0[slot..].fill(None);
        self
    }

    /// What an acceptor's log is after it took the entries of `other` up to `upto`: those that are there already stay, with
    /// all that follows them; from the first that differs the tail is cut.
    pub(crate) fn taken(self, other: &Log, upto: Slot) -> Log {
        if (1..=upto).all(|slot| self.get(slot) == other.get(slot)) { self } else { other.prefix(upto) }
    }

    /// Ballot and slot of the last entry: whose are greatest has seen all that may have been decided.
    pub(crate) fn last(&self) -> (Ballot, Slot) {
        let len = self.len();
        (self.get(len).map_or(0, |entry| entry.ballot), len)
    }

    pub(crate) fn mastership(&self, rules: &Rules) -> Mastership {
        let mut mastership = Mastership::default();
        for (entry, slot) in self.entries().zip(1..) {
            mastership.apply(slot, entry, rules);
        }
        mastership
    }

    pub(crate) fn renamed(mut self, names: [u8; 3]) -> Log {
        for entry in self.0.iter_mut().flatten() {
            entry.node = names[usize::from(entry.node)];
        }
        self
    }
}

/// Who is master by a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mastership {
    pub(crate) tenure: Tenure,
    pub(crate) node: u8,
    /// The slot of its BeMaster.
    pub(crate) since: u8,
    /// The last slot that renewed its lease.
    pub(crate) lease_slot: u8,
    /// What its BeMaster claimed.
    pub(crate) claim: Option<Claim>,
    /// Whether its liveness renews it, too.
    pub(crate) lives: bool,
    /// How many BeMasters came to nothing.
    pub(crate) void: u8,
}

impl Mastership {
    pub(crate) fn is_led_by(&self, node: u8, ballot: Ballot) -> bool {
        self.tenure.epoch > 0 && self.node == node && self.tenure.ballot == ballot
    }

    fn apply(&mut self, slot: u8, entry: Entry, rules: &Rules) {
        match entry.value {
            Value::BeMaster(claim, lives) if self.gives_way(claim, entry.node, rules) => {
                *self = Mastership {
                    tenure: Tenure { epoch: self.tenure.epoch + 1, ballot: entry.ballot },
                    node: entry.node,
                    since: slot,
                    lease_slot: slot,
                    claim: Some(claim),
                    lives,
                    void: self.void,
                }
            }
            Value::BeMaster(..) => {
                self.void += 1;
                self.renew(slot, entry);
            }
            Value::Data => self.renew(slot, entry),
        }
    }

    fn renew(&mut self, slot: u8, entry: Entry) {
        if self.tenure.epoch > 0 && entry.ballot == self.tenure.ballot {
            self.lease_slot = slot;
        }
    }

    fn gives_way(&self, claim: Claim, node: u8, rules: &Rules) -> bool {
        if rules.compare == Compare::Nothing {
            return true;
        }
        match claim {
            Claim::Waited { tenure, lease_slot } => {
                tenure.is(self.tenure, rules) && (rules.compare < Compare::LeaseSlot || lease_slot == self.lease_slot)
            }
            Claim::Own(tenure) => tenure.is(self.tenure, rules) && node == self.node,
            Claim::Consent(tenure) => tenure.is(self.tenure, rules),
        }
    }
}
