//! Pool of connections by tenant, scheme, host, port and egress policy. A tenant uses only its own connections, and
//! only those that its current policy permits.
//!
//! The pool has no limit of its own on the connections to a target. The scheduler limits the callbacks in flight to a
//! target, and each callback needs at most one connection.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use domain::{Egress, TenantId};
use http::Uri;
use runtime::Runtime;
use scheduler::CONNECTION_WAIT_MAX;
use tokio::sync::Notify;

use crate::connect::Connector;
use crate::failure::Failure;
use crate::http1::Http1;
use crate::http2::{Http2, StreamPermit};
use crate::share::TenantShare;
use crate::{Connections, Options, RootError};

pub(crate) struct Pool {
    runtime: Runtime,
    connector: Connector,
    idle_max: usize,
    /// Number of sweeps (periodic checks of all connections) after which the pool closes an idle connection.
    idle_sweeps_max: u32,
    sweep_period: Duration,
    /// Number of sweeps so far. The pool measures the idle time of connections in sweeps, because it can read this
    /// number with little work.
    sweeps: AtomicU32,
    idle: Arc<AtomicUsize>,
    opened: AtomicU64,
    known: Mutex<Known>,
}

/// Number of authorities that a sweep checks before it lets other tasks run.
const AUTHORITIES_PER_SLICE: usize = 64;
/// Number of connections that a sweep closes before it lets other tasks run.
const CLOSED_PER_SLICE: usize = 8;

#[derive(Default)]
struct Known {
    authorities: HashMap<AuthorityKey, Arc<Authority>>,
    tenants: HashMap<TenantId, Weak<TenantShare>>,
}

/// Key of an authority: the tenant, the scheme, host and port, and the egress policy.
type AuthorityKey = (TenantId, Uri, Arc<Egress>);

/// Connections of one tenant to one scheme, host and port under one egress policy. Each prepared target contains an
/// `Arc` of its authority. The pool keeps an authority as long as it has connections, even if the cache drops all
/// targets with this authority.
pub(crate) struct Authority {
    /// URL to which the client connects: the normalised scheme, host and port, for example
    /// `https://hooks.example:443/`.
    connect_to: Uri,
    /// Egress policy that permits the connections of this authority.
    pub(crate) egress: Arc<Egress>,
    pub(crate) tenant: TenantId,
    share: Arc<TenantShare>,
    state: Mutex<State>,
    /// Wakes the attempts that wait for a connection.
    changed: Arc<Notify>,
}

struct State {
    /// Stack of idle connections. An attempt takes the most recently used connection, so surplus connections stay idle
    /// until the pool closes them.
    idle: Vec<Idle>,
    http2: Vec<Multiplexed>,
    connecting: Connecting,
}

/// States whether one attempt at a time or every attempt may open a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Connecting {
    /// One attempt at a time connects, because all callbacks may fit on one HTTP/2 connection. `is_busy` is true while
    /// an attempt connects.
    InTurn { is_busy: bool },
    /// Every attempt may connect, because the target uses HTTP/1.1, or because the last attempt to connect failed.
    AtOnce,
}

struct Idle {
    connection: Box<Http1>,
    /// Number of the pool's periodic sweep that closes the connection if it is still idle.
    until: u32,
    _counted: Counted,
}

/// Guard that adds one connection to the counts of the pool and of the connection's tenant. A drop of this guard
/// subtracts the connection from both counts.
struct Counted {
    all: Arc<AtomicUsize>,
    of_tenant: Arc<AtomicUsize>,
}

impl Counted {
    /// Returns `None` if the pool must not keep a further connection of the tenant. One tenant may keep at most about
    /// half of `max` connections, so that other tenants can also keep connections.
    fn one(all: &Arc<AtomicUsize>, of_tenant: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let counted = Counted { all: all.clone(), of_tenant: of_tenant.clone() };
        let free = max.saturating_sub(all.fetch_add(1, Ordering::Relaxed));
        (of_tenant.fetch_add(1, Ordering::Relaxed) < free).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
        self.of_tenant.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Multiplexed {
    connection: Http2,
    until: u32,
    /// Guard that counts the connection, or `None` if the pool must not keep the connection. Without a guard, the next
    /// sweep closes the connection if it is idle.
    counted: Option<Counted>,
}

pub(crate) enum Channel {
    Http1(Box<Http1>),
    Http2(StreamPermit),
}

/// Open connection for an attempt, or permission for the attempt to open a connection.
pub(crate) enum Slot<'a> {
    /// Open connection that can take a request.
    Open(Channel),
    /// Permission for the attempt to open a new connection.
    Connect(Turn<'a>),
}

/// Permission for one attempt to open a connection. When the attempt drops this value, other attempts may connect.
pub(crate) struct Turn<'a> {
    authority: &'a Authority,
    /// Value that `State::connecting` receives when the attempt drops this `Turn`.
    next: Connecting,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.authority.state).connecting = self.next;
        self.authority.changed.notify_waiters();
    }
}

impl Authority {
    /// Removes the connections that were idle for too long, as of the sweep `now`, or that their target has closed.
    /// Returns those that the caller closes when it drops them; other tasks close the connections over HTTP/2.
    fn expired(&self, now: u32) -> Vec<Idle> {
        let context = &mut Context::from_waker(Waker::noop());
        let mut state = lock(&self.state);
        let is_kept = |held: &Multiplexed| held.until > now || !held.connection.is_idle();
        state.http2.retain(|held| !held.connection.is_closed() && is_kept(held));
        state.idle.extract_if(.., |idle| idle.until <= now || !idle.connection.is_ready(context)).collect()
    }

    fn has_connections(&self) -> bool {
        let state = lock(&self.state);
        !(state.idle.is_empty() && state.http2.is_empty())
    }
}

/// Interval between checks of idle connections, which is the precision of [`Options::idle_timeout`].
pub(crate) fn sweep_period(idle_timeout: Duration) -> Duration {
    (idle_timeout / 8).clamp(Duration::from_millis(10), Duration::from_secs(1))
}

impl Pool {
    pub(crate) fn new(runtime: &Runtime, options: &Options) -> Result<Self, RootError> {
        let sweep_period = sweep_period(options.idle_timeout);
        Ok(Pool {
            runtime: runtime.clone(),
            connector: Connector::new(runtime, options)?,
            idle_max: options.idle_connections_max,
            idle_sweeps_max: sweeps(options.idle_timeout, sweep_period),
            sweep_period,
            sweeps: AtomicU32::new(0),
            idle: Arc::new(AtomicUsize::new(0)),
            opened: AtomicU64::new(0),
            known: Mutex::default(),
        })
    }

    /// Returns the existing or a new [`Authority`] for `tenant`, `connect_to` (normalised scheme, host and port) and
    /// the policy `egress`.
    pub(crate) fn authority(&self, tenant: TenantId, connect_to: &Uri, egress: &Egress) -> Arc<Authority> {
        let egress = Arc::new(egress.clone());
        let key = (tenant, connect_to.clone(), egress.clone());
        let mut known = lock(&self.known);
        if let Some(authority) = known.authorities.get(&key) {
            return authority.clone();
        }
        let share = known.tenants.get(&tenant).and_then(Weak::upgrade).unwrap_or_else(|| {
            let share = Arc::new(TenantShare::new());
            known.tenants.insert(tenant, Arc::downgrade(&share));
            share
        });
        let connecting = match connect_to.scheme_str() {
            Some("http") => Connecting::AtOnce,
            _ => Connecting::InTurn { is_busy: false },
        };
        let state = Mutex::new(State { idle: Vec::new(), http2: Vec::new(), connecting });
        let connect_to = connect_to.clone();
        let authority = Arc::new(Authority { connect_to, egress, tenant, share, state, changed: Arc::default() });
        known.authorities.insert(key, authority.clone());
        authority
    }

    /// Waits until a connection can take the attempt's request, or until the attempt may connect. While other attempts
    /// connect, this attempt waits for at most [`CONNECTION_WAIT_MAX`]. After this time, it may connect, too.
    pub(crate) async fn slot<'a>(&self, authority: &'a Authority) -> Slot<'a> {
        if let Some(slot) = self.free_slot(authority).await {
            return slot;
        }
        // The code boxes the future that waits, because its state would enlarge every attempt's future, although
        // attempts rarely wait.
        let wait = Box::pin(async {
            loop {
                let mut changed = pin!(authority.changed.notified());
                changed.as_mut().enable();
                if let Some(slot) = self.free_slot(authority).await {
                    return slot;
                }
                changed.await;
            }
        });
        let late = || Slot::Connect(Turn { authority, next: Connecting::AtOnce });
        self.runtime.timeout(CONNECTION_WAIT_MAX, wait).await.unwrap_or_else(late)
    }

    async fn free_slot<'a>(&self, authority: &'a Authority) -> Option<Slot<'a>> {
        if let Some(permit) = self.permit(authority) {
            return Some(Slot::Open(Channel::Http2(permit)));
        }
        if let Some(connection) = poll_fn(|context| Poll::Ready(take_idle(authority, context))).await {
            return Some(Slot::Open(Channel::Http1(connection)));
        }
        let mut state = lock(&authority.state);
        match state.connecting {
            Connecting::InTurn { is_busy: true } => return None,
            Connecting::InTurn { is_busy: false } => state.connecting = Connecting::InTurn { is_busy: true },
            Connecting::AtOnce => {}
        }
        // If this attempt fails to connect, all waiting attempts may connect at once. If they connected one by one,
        // each of them would wait until all attempts before it had failed.
        Some(Slot::Connect(Turn { authority, next: Connecting::AtOnce }))
    }

    fn permit(&self, authority: &Authority) -> Option<StreamPermit> {
        let mut state = lock(&authority.state);
        state.http2.retain(|held| !held.connection.is_closed());
        // The code takes the first connection with a free stream, so that the other connections become idle and expire.
        state.http2.iter_mut().find_map(|held| {
            let permit = held.connection.permit()?;
            if held.counted.is_some() {
                held.until = self.sweeps_until(None);
            }
            Some(permit)
        })
    }

    /// Opens a connection. This function drops `turn` when the connection can take requests, or when the attempt to
    /// connect fails.
    pub(crate) async fn connect(&self, mut turn: Turn<'_>) -> Result<Channel, Failure> {
        let authority = turn.authority;
        let (stream, is_http2) =
            self.connector.connect(authority.connect_to.clone(), &authority.egress, &authority.share).await?;
        self.opened.fetch_add(1, Ordering::Relaxed);
        if !is_http2 {
            return Ok(Channel::Http1(Http1::start(stream).await?));
        }
        let connection = Http2::start(&self.runtime, stream, authority.changed.clone()).await?;
        let permit = connection.permit().ok_or_else(|| Failure::Broken("connection closed".to_owned()))?;
        let counted = Counted::one(&self.idle, &authority.share.idle, self.idle_max);
        let until = if counted.is_some() { self.sweeps_until(None) } else { 0 };
        lock(&authority.state).http2.push(Multiplexed { connection, until, counted });
        turn.next = Connecting::InTurn { is_busy: false };
        Ok(Channel::Http2(permit))
    }

    /// Keeps a connection for the next callback if the connection is still usable and the limits allow another idle
    /// connection.
    pub(crate) async fn release(&self, authority: &Authority, mut connection: Box<Http1>) {
        if !poll_fn(|context| Poll::Ready(connection.is_ready(context))).await {
            return;
        }
        let Some(_counted) = Counted::one(&self.idle, &authority.share.idle, self.idle_max) else { return };
        let until = self.sweeps_until(connection.keep_alive);
        lock(&authority.state).idle.push(Idle { connection, until, _counted });
    }

    /// Returns the number of the sweep that closes a connection if the connection becomes idle now. `keep_alive` is the
    /// time for which the target keeps an idle connection open. The pool closes the connection a second earlier,
    /// because an attempt fails if the target closes the connection while the callback is in transit.
    fn sweeps_until(&self, keep_alive: Option<Duration>) -> u32 {
        let own = self.idle_sweeps_max;
        let sweeps_max = keep_alive.map_or(own, |limit| {
            own.min(sweeps(limit.saturating_sub(Duration::from_secs(1)), self.sweep_period).saturating_sub(1))
        });
        self.sweeps.load(Ordering::Relaxed).saturating_add(sweeps_max)
    }

    /// Closes connections that were idle for too long or that their target has closed, and removes authorities without
    /// connections that no prepared target uses. The closing of a connection takes about 15 us, and thousands may expire
    /// at once. Other tasks therefore run between every few connections.
    pub(crate) async fn sweep(&self) {
        let now = self.sweeps.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let authorities: Vec<_> = lock(&self.known).authorities.values().cloned().collect();
        for authorities in authorities.chunks(AUTHORITIES_PER_SLICE) {
            let mut expired: Vec<_> = authorities.iter().flat_map(|authority| authority.expired(now)).collect();
            while !expired.is_empty() {
                expired.truncate(expired.len().saturating_sub(CLOSED_PER_SLICE));
                tokio::task::yield_now().await;
            }
            tokio::task::yield_now().await;
        }
        drop(authorities);
        let mut known = lock(&self.known);
        known.authorities.retain(|_, authority| Arc::strong_count(authority) > 1 || authority.has_connections());
        known.tenants.retain(|_, share| share.strong_count() > 0);
    }

    pub(crate) fn connections(&self) -> Connections {
        Connections { opened: self.opened.load(Ordering::Relaxed), idle: self.idle.load(Ordering::Relaxed) }
    }
}

fn take_idle(authority: &Authority, context: &mut Context<'_>) -> Option<Box<Http1>> {
    loop {
        let mut connection = lock(&authority.state).idle.pop()?.connection;
        if connection.is_ready(context) {
            return Some(connection);
        }
    }
}

/// Returns the number of sweeps during `duration`, with one sweep at the end of each `period`; at least 1.
fn sweeps(duration: Duration, period: Duration) -> u32 {
    u32::try_from(duration.as_nanos() / period.as_nanos().max(1)).unwrap_or(u32::MAX).max(1)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder of this lock panics")
}
