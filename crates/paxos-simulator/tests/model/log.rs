//! Entries of a log, and the mastership that results from the entries alone.

use crate::rules::{Compare, Rules};

/// Maximum number of slots in a log, in all configurations of the model.
pub(crate) const SLOTS: usize = 4;

/// Number of a slot. Slots begin at 1, and 0 is the position before the first slot.
pub(crate) type Slot = usize;

/// Number of a ballot. Ballots begin at 1, and 0 is lower than all ballots. Each ballot belongs to the node that opened
/// it.
pub(crate) type Ballot = u8;

/// Identifier of a mastership. The epoch alone does not identify a mastership: see `Compare::Ballot`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Term {
    /// Epoch of the mastership; 0 before the first master.
    pub(crate) epoch: u8,
    pub(crate) ballot: Ballot,
}

impl Term {
    pub(crate) fn is(self, other: Term, rules: &Rules) -> bool {
        self.epoch == other.epoch && (rules.compare < Compare::Ballot || self.ballot == other.ballot)
    }
}

/// Claim of a `BeMaster` entry about the mastership that the entry ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Claim {
    /// Claim that the claimer waited until the lease was over. The claim is void if a slot after `lease_slot` renewed
    /// the lease.
    Waited { term: Term, lease_slot: u8 },
    /// Claim that the claimer itself is the present master.
    Own(Term),
    /// Claim that the master consented to a takeover by the claimer.
    Consent(Term),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Value {
    Data,
    /// Claim of a node, and a flag that is true if renewals of the node's liveness also renew the lease.
    BeMaster(Claim, bool),
}

/// Entry of a log, with the ballot of its first proposal and the owner of that ballot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) ballot: Ballot,
    pub(crate) node: u8,
    pub(crate) value: Value,
}

/// Log of entries from slot 1 on, without gaps.
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

    /// Returns the entries up to and including `slot`.
    pub(crate) fn prefix(mut self, slot: Slot) -> Log {
        self.0[slot..].fill(None);
        self
    }

    /// Returns the log of an acceptor after the acceptor has accepted the entries of `other` up to the slot `upto`. If
    /// the acceptor's log already contains all these entries, the result is this log. Otherwise the result is the log
    /// `other` up to `upto`.
    pub(crate) fn taken(self, other: &Log, upto: Slot) -> Log {
        if (1..=upto).all(|slot| self.get(slot) == other.get(slot)) { self } else { other.prefix(upto) }
    }

    /// Returns the ballot and slot of the last entry. Of the logs of a quorum, the log with the greatest pair contains
    /// all slots that may be decided.
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

/// Mastership at the end of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mastership {
    pub(crate) term: Term,
    pub(crate) node: u8,
    /// Slot of the `BeMaster` entry that began the mastership.
    pub(crate) since: u8,
    /// Last slot that renewed the mastership's lease.
    pub(crate) lease_slot: u8,
    /// Claim of the `BeMaster` entry that began the mastership.
    pub(crate) claim: Option<Claim>,
    /// True if renewals of the master's liveness also renew the lease.
    pub(crate) lives: bool,
    /// Number of void `BeMaster` entries in the log.
    pub(crate) void: u8,
}

impl Mastership {
    pub(crate) fn is_led_by(&self, node: u8, ballot: Ballot) -> bool {
        self.term.epoch > 0 && self.node == node && self.term.ballot == ballot
    }

    fn apply(&mut self, slot: u8, entry: Entry, rules: &Rules) {
        match entry.value {
            Value::BeMaster(claim, lives) if self.gives_way(claim, entry.node, rules) => {
                *self = Mastership {
                    term: Term { epoch: self.term.epoch + 1, ballot: entry.ballot },
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
        if self.term.epoch > 0 && entry.ballot == self.term.ballot {
            self.lease_slot = slot;
        }
    }

    fn gives_way(&self, claim: Claim, node: u8, rules: &Rules) -> bool {
        if rules.compare == Compare::Nothing {
            return true;
        }
        match claim {
            Claim::Waited { term, lease_slot } => {
                term.is(self.term, rules) && (rules.compare < Compare::LeaseSlot || lease_slot == self.lease_slot)
            }
            Claim::Own(term) => term.is(self.term, rules) && node == self.node,
            Claim::Consent(term) => term.is(self.term, rules),
        }
    }
}
