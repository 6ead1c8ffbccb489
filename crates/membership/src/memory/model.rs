//! Model of sessions and claims as plain maps. It defines the exact effect of each call of the port.

use std::collections::{BTreeMap, BTreeSet};

use runtime::Monotonic;

use crate::{ClaimName, Member, MemberId, View};

#[derive(Default)]
pub(super) struct Model {
    sessions: BTreeMap<MemberId, Session>,
    claims: BTreeMap<ClaimName, MemberId>,
    /// Ids of ended sessions. The model opens no second session for such an id.
    ended: BTreeSet<MemberId>,
    /// Number of changes of the view, without the changes that the end of a lease caused.
    pub(super) changes: u64,
}

struct Session {
    member: Member,
    /// First instant at which the session has ended. `None` if the session never ends.
    end: Option<Monotonic>,
}

impl Model {
    /// Ends the expired sessions. Returns true if the call ended a session.
    pub(super) fn end_sessions(&mut self, now: Monotonic) -> bool {
        let has_ended = |session: &Session| session.end.is_some_and(|end| end <= now);
        let ended: Vec<MemberId> =
            self.sessions.iter().filter(|(_, session)| has_ended(session)).map(|(id, _)| *id).collect();
        ended.iter().for_each(|id| self.end(*id));
        !ended.is_empty()
    }

    fn end(&mut self, id: MemberId) {
        self.sessions.remove(&id);
        self.claims.retain(|_, holder| *holder != id);
        self.ended.insert(id);
    }

    /// Opens or renews a session. Returns false if the session with this id has ended.
    pub(super) fn join(&mut self, member: Member, end: Option<Monotonic>) -> bool {
        if let Some(session) = self.sessions.get_mut(&member.id) {
            self.changes += u64::from(session.member != member);
            *session = Session { member, end };
            return true;
        }
        if self.ended.contains(&member.id) {
            return false;
        }
        self.sessions.insert(member.id, Session { member, end });
        self.changes += 1;
        true
    }

    /// Renews a session. Returns false if the member has no session.
    pub(super) fn renew(&mut self, id: MemberId, end: Option<Monotonic>) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        session.end = end;
        true
    }

    pub(super) fn leave(&mut self, id: MemberId) {
        let was_there = self.sessions.contains_key(&id);
        self.end(id);
        self.changes += u64::from(was_there);
    }

    /// Claims names for a member. Returns for each name whether the member holds the claim, or `None` if the member has
    /// no session.
    pub(super) fn claim(&mut self, id: MemberId, names: Vec<ClaimName>) -> Option<Vec<bool>> {
        self.sessions.contains_key(&id).then(|| names.into_iter().map(|name| self.claim_one(id, name)).collect())
    }

    fn claim_one(&mut self, id: MemberId, name: ClaimName) -> bool {
        if let Some(holder) = self.claims.get(&name) {
            return *holder == id;
        }
        self.claims.insert(name, id);
        self.changes += 1;
        true
    }

    pub(super) fn release(&mut self, id: MemberId, names: &[ClaimName]) {
        for name in names {
            if self.claims.get(name) == Some(&id) {
                self.claims.remove(name);
                self.changes += 1;
            }
        }
    }

    pub(super) fn view(&self, now: Monotonic) -> View {
        View {
            members: self.sessions.values().map(|session| session.member.clone()).collect(),
            claims: self.claims.clone(),
            first_end: self.sessions.values().filter_map(|session| session.end).min().map(|end| end.since(now)),
        }
    }
}
