//! Network between the members, the store and the coordination engine. The nemesis can cut each link in one or both
//! directions, and can make the network lose messages between members.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use membership::Member;
use scheduler::operations::{Cancel, Operation as _, encode_response};
use scheduler::{CancelResponse, PeerError, Peers, Scheduler};

use super::mutant::Mutant;
use crate::Handle;

/// Longest travel time of a message, in microseconds.
const TRAVEL_MICROS_MAX: u64 = 2_000;
/// Shortest and longest time, in milliseconds, for which the sender of a lost message waits for a response.
const GIVE_UP_MILLIS: (u64, u64) = (200, 900);

pub(super) const STORE: &str = "store";
pub(super) const ENGINE: &str = "engine";

#[derive(Clone)]
pub(super) struct Net {
    pub(super) sim: Handle,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Instant at which the cut of each link ends. The key of the map is the link: the sender and the destination of
    /// its messages.
    cuts: BTreeMap<(String, String), Duration>,
    lossy_until: Duration,
    members: BTreeMap<String, Scheduler>,
}

impl Net {
    pub(super) fn new(sim: &Handle) -> Net {
        Net { sim: sim.clone(), state: Arc::default() }
    }

    /// Cuts the link from one node to the other for this duration.
    pub(super) fn cut(&self, from: &str, to: &str, duration: Duration) {
        let until = self.sim.elapsed() + duration;
        self.sim.note(&format!("link from {from} to {to} is cut for {duration:?}"));
        let mut state = self.lock();
        let known = state.cuts.entry((from.to_owned(), to.to_owned())).or_default();
        *known = until.max(*known);
    }

    /// Loses some messages between members for this duration.
    pub(super) fn lose_some(&self, duration: Duration) {
        self.lock().lossy_until = self.sim.elapsed() + duration;
    }

    pub(super) fn heal(&self) {
        let mut state = self.lock();
        state.cuts.clear();
        state.lossy_until = Duration::ZERO;
    }

    pub(super) fn is_cut(&self, from: &str, to: &str) -> bool {
        let until = self.lock().cuts.get(&(from.to_owned(), to.to_owned())).copied();
        until.is_some_and(|until| self.sim.elapsed() < until)
    }

    pub(super) fn attach(&self, name: &str, scheduler: Option<Scheduler>) {
        let mut state = self.lock();
        let before = match scheduler {
            Some(scheduler) => state.members.insert(name.to_owned(), scheduler),
            None => state.members.remove(name),
        };
        drop(state);
        drop(before);
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.lock().members.keys().cloned().collect()
    }

    pub(super) fn scheduler(&self, name: &str) -> Option<Scheduler> {
        self.lock().members.get(name).cloned()
    }

    fn is_lost(&self, from: &str, to: &str) -> bool {
        let is_lossy = self.sim.elapsed() < self.lock().lossy_until;
        self.is_cut(from, to) || (is_lossy && self.sim.draw(|random| random.below(5)) == 0)
    }

    /// Returns a random time for which a sender waits for a response.
    pub(super) fn give_up_after(&self) -> Duration {
        let (least, most) = GIVE_UP_MILLIS;
        Duration::from_millis(self.sim.draw(|random| least + random.below(most - least)))
    }

    fn travel_time(&self) -> Duration {
        Duration::from_micros(self.sim.draw(|random| random.below(TRAVEL_MICROS_MAX)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

/// Sender of one member's requests to other members. Each request runs in a task of the other member.
pub(super) struct Wire {
    pub(super) net: Net,
    pub(super) runtime: runtime::Runtime,
    pub(super) name: String,
    pub(super) mutant: Option<Mutant>,
}

impl Peers for Wire {
    fn request(
        &self,
        to: &Member,
        operation: &'static str,
        request: Bytes,
    ) -> BoxFuture<'static, Result<Bytes, PeerError>> {
        let is_cancel = operation == Cancel::NAME;
        if self.mutant == Some(Mutant::CancelsWithoutOwner) && is_cancel {
            let cancelled = encode_response::<Cancel>(&Ok(CancelResponse::Cancelled));
            return Box::pin(std::future::ready(Ok(cancelled)));
        }
        let (net, runtime, here, there) = (self.net.clone(), self.runtime.clone(), self.name.clone(), to.name.clone());
        // The bug `RenewsWithoutCancellations` has an effect only if the cancellation does not reach the owner.
        // Therefore the network loses the request to cancel.
        let drops_cancels = self.mutant == Some(Mutant::RenewsWithoutCancellations) && is_cancel;
        Box::pin(async move {
            let lost = |reason: &str| PeerError::Unreachable { member: there.clone(), reason: reason.to_owned() };
            runtime.sleep(net.travel_time()).await;
            let Some(scheduler) = net.scheduler(&there).filter(|_| !drops_cancels && !net.is_lost(&here, &there))
            else {
                runtime.sleep(net.give_up_after()).await;
                return Err(lost("request lost"));
            };
            let handling = async move { scheduler.handle(operation, &request).await };
            let response = net.sim.call(&there, handling).await;
            runtime.sleep(net.travel_time()).await;
            match response {
                Some(response) if !net.is_lost(&there, &here) => {
                    Ok(response.expect("members of the same build can decode each other's requests"))
                }
                _ => {
                    runtime.sleep(net.give_up_after()).await;
                    Err(lost("response lost"))
                }
            }
        })
    }
}
