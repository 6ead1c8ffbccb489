//! Slots of a listener, one for each open connection.
//!
//! When all slots are in use, the listener closes idle connections to free a slot. It closes only untrusted
//! connections, and closes the connection that has been idle longest first. Each client address has a share of the
//! slots. When an address uses its whole share, its next connection replaces one of its idle connections.
//!
//! Invariants: at most `connections_max` slots exist. To free a slot, the listener closes no trusted connection and no
//! connection with a request in progress.
//!
//! docs/decisions/0194-replace-idle-connections-without-a-key.md gives the reasons for the design.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use runtime::Runtime;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Wait between two searches for an idle connection while all slots are in use. A connection that becomes idle sends no
/// notification, because all connections become idle often and the slots are rarely all in use.
const SEARCH_PERIOD: Duration = Duration::from_millis(20);
/// Bit of [`State::busy`] that marks a connection that the listener closes.
const CLOSING: u64 = 1 << 63;

/// Slot of an open connection.
#[derive(Clone)]
pub struct Slot(Arc<State>);

struct State {
    runtime: Runtime,
    source: Source,
    is_trusted: AtomicBool,
    /// Number of requests in progress, with the bit [`CLOSING`] while the listener closes the connection.
    busy: AtomicU64,
    /// Time at which the last request ended, or the time of the accept, in milliseconds of the monotonic clock.
    idle_from_millis: AtomicU64,
    close: CancellationToken,
}

impl Slot {
    fn new(runtime: &Runtime, source: Source) -> Self {
        Slot(Arc::new(State {
            runtime: runtime.clone(),
            source,
            is_trusted: AtomicBool::new(false),
            busy: AtomicU64::new(0),
            idle_from_millis: AtomicU64::new(millis(runtime)),
            close: CancellationToken::new(),
        }))
    }

    /// Prevents the listener from closing the connection to free its slot. The caller must first check the client's
    /// key.
    pub fn trust(&self) {
        self.0.is_trusted.store(true, Ordering::Relaxed);
    }

    /// Counts a request as in progress until the guard is dropped. Returns `None` if the listener is closing the
    /// connection.
    pub(crate) fn begin(&self) -> Option<InProgress> {
        let before = self.0.busy.fetch_add(1, Ordering::AcqRel);
        let guard = InProgress(self.clone());
        (before & CLOSING == 0).then_some(guard)
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.0.busy.load(Ordering::Relaxed) > 0
    }

    /// Resolves when the listener closes the connection to free its slot.
    pub(crate) async fn closed(&self) {
        self.0.close.cancelled().await;
    }

    /// Closes the connection unless a request is in progress. Returns true if the connection closes.
    fn close(&self) -> bool {
        let is_idle = self.0.busy.compare_exchange(0, CLOSING, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_idle {
            self.0.close.cancel();
        }
        is_idle
    }

    /// Returns true if the listener closes the connection to free its slot.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.0.close.is_cancelled()
    }

    fn is_replaceable(&self) -> bool {
        !self.0.is_trusted.load(Ordering::Relaxed) && !self.is_busy()
    }
}

/// Guard of a request in progress.
pub(crate) struct InProgress(Slot);

impl Drop for InProgress {
    fn drop(&mut self) {
        let state = &self.0.0;
        state.idle_from_millis.store(millis(&state.runtime), Ordering::Relaxed);
        state.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Share of the slots that one client address may use.
#[derive(Clone)]
pub struct AddressShare {
    /// Maximum number of open connections of one address. At this limit, a further connection replaces an idle,
    /// untrusted connection of the same address. If the address has no such connection, the listener closes the further
    /// connection.
    pub connections_max: usize,
    /// Function that returns true for an address that may use all slots, such as the address of a proxy.
    pub is_exempt: Arc<dyn Fn(IpAddr) -> bool + Send + Sync>,
    /// Function that the listener calls when it closes a connection because the client's address already uses its whole
    /// share of the slots.
    pub rejected: Arc<dyn Fn() + Send + Sync>,
}

/// Client address that has a share of the slots. All IPv6 addresses with the same first 64 bits count as one address,
/// because one client can use all of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Source(IpAddr);

impl Source {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Source(IpAddr::V4(address)),
            IpAddr::V6(address) => Source(IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64))),
        }
    }
}

/// Slots of the open connections.
#[derive(Default)]
struct Open {
    slots: BTreeMap<u64, Slot>,
    /// Number of slots of each client address.
    used: BTreeMap<Source, usize>,
}

/// Slots of one listener.
pub(crate) struct Slots {
    runtime: Runtime,
    connections_max: usize,
    share: Option<AddressShare>,
    open: Mutex<Open>,
    /// Notification of a freed slot.
    freed: Notify,
}

impl Slots {
    pub(crate) fn new(runtime: &Runtime, connections_max: usize, share: Option<AddressShare>) -> Arc<Self> {
        Arc::new(Slots {
            runtime: runtime.clone(),
            connections_max,
            share,
            open: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// Waits for a slot for a connection from `address`. Returns `None` if the address already uses its share of the
    /// slots and has no idle, untrusted connection. `number` identifies the connection.
    ///
    /// The function has one caller at a time, the accept loop. It is cancel-safe.
    pub(crate) async fn take(self: &Arc<Self>, number: u64, address: IpAddr) -> Option<Taken> {
        let share = self.share.as_ref().filter(|share| !(share.is_exempt)(address.to_canonical()));
        let share_max = share.map_or(self.connections_max, |share| share.connections_max);
        loop {
            match self.try_take(number, Source::of(address), share_max) {
                Found::Slot(slot) => return Some(Taken { slots: self.clone(), number, slot }),
                Found::ShareUsedUp => {
                    share.into_iter().for_each(|share| (share.rejected)());
                    return None;
                }
                Found::Full => {
                    self.runtime.timeout(SEARCH_PERIOD, self.freed.notified()).await;
                }
            }
        }
    }

    fn try_take(&self, number: u64, source: Source, share_max: usize) -> Found {
        let mut open = self.open();
        let used = open.used.get(&source).copied().unwrap_or(0);
        if used >= share_max && share_max < self.connections_max {
            let of_source = || open.slots.values().filter(|slot| slot.0.source == source);
            let is_freed = of_source().any(Slot::is_closing) || replace(of_source());
            return if is_freed { Found::Full } else { Found::ShareUsedUp };
        }
        if open.slots.len() >= self.connections_max {
            if !open.slots.values().any(Slot::is_closing) {
                replace(open.slots.values());
            }
            return Found::Full;
        }
        let slot = Slot::new(&self.runtime, source);
        open.slots.insert(number, slot.clone());
        *open.used.entry(source).or_default() += 1;
        Found::Slot(slot)
    }

    /// Closes the untrusted connection that has been idle longest.
    pub(crate) fn free_one(&self) {
        replace(self.open().slots.values());
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("no holder of this lock panics")
    }
}

enum Found {
    Slot(Slot),
    /// No slot is free for the connection yet. The accept loop tries again after a connection ends or a short time has
    /// passed.
    Full,
    ShareUsedUp,
}

/// Closes the untrusted connection that has been idle longest. Returns true if it closes a connection.
fn replace<'a>(slots: impl Iterator<Item = &'a Slot>) -> bool {
    let idle_from = |slot: &&Slot| slot.0.idle_from_millis.load(Ordering::Relaxed);
    slots.filter(|slot| slot.is_replaceable()).min_by_key(idle_from).is_some_and(Slot::close)
}

/// Guard of a slot. The slot is free after the guard is dropped.
pub(crate) struct Taken {
    slots: Arc<Slots>,
    number: u64,
    pub(crate) slot: Slot,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut open = self.slots.open();
        open.slots.remove(&self.number);
        if let Entry::Occupied(mut used) = open.used.entry(self.slot.0.source) {
            *used.get_mut() -= 1;
            if *used.get() == 0 {
                used.remove();
            }
        }
        drop(open);
        self.slots.freed.notify_one();
    }
}

fn millis(runtime: &Runtime) -> u64 {
    u64::try_from(runtime.monotonic().since_start().as_millis()).unwrap_or(u64::MAX)
}
