//! Pool of connections by scheme, host, port and egress policy. A tenant uses only connections that its own current
//! policy permits.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use domain::Egress;
use http::Uri;
use runtime::Runtime;
use tokio::sync::Semaphore;

use crate::connect::Connector;
use crate::failure::Failure;
use crate::http1::Http1;
use crate::http2::{Http2, Sender};
use crate::{Connections, Options, RootError};

pub(crate) struct Pool {
    runtime: Runtime,
    connector: Connector,
    in_flight_per_authority_max: usize,
    idle_max: usize,
    /// Number of sweeps for which a connection may stay idle.
    idle_sweeps_max: u32,
    sweep_period: Duration,
    /// Number of sweeps so far. It serves as the clock of idle connections, because reading it is cheap.
    sweeps: AtomicU32,
    idle: Arc<AtomicUsize>,
    opened: AtomicU64,
    authorities: Mutex<HashMap<AuthorityKey, Weak<Authority>>>,
}

/// Key of an authority: the scheme, host and port, and the egress policy.
type AuthorityKey = (Uri, Arc<Egress>);

/// Connections to one scheme, host and port under one policy. The prepared targets that use an authority own it.
pub(crate) struct Authority {
    /// URL of the form `https://host:port/`.
    connect_to: Uri,
    /// Policy that permits the connections.
    pub(crate) egress: Arc<Egress>,
    /// Permits for exchanges in flight. Each exchange needs one permit.
    pub(crate) slots: Semaphore,
    /// Stack of idle connections. An attempt takes the most recently used connection, so surplus connections expire.
    idle: Mutex<Vec<Idle>>,
    http2: Mutex<Option<Multiplexed>>,
    /// Permit that an attempt holds while it connects to a target that may support HTTP/2. One HTTP/2 connection serves
    /// all callbacks, so concurrent attempts must not open several connections.
    connect_turn: Semaphore,
    /// True if the authority uses HTTP/1.1: its URLs have the scheme `http`, or the target selected HTTP/1.1 in
    /// the last TLS handshake.
    is_http1: AtomicBool,
}

impl Authority {
    /// Removes the HTTP/2 connection if it is still the connection of `sender`, so that the next callback opens a new
    /// connection.
    pub(crate) fn forget(&self, sender: &Sender) {
        lock(&self.http2).take_if(|held| held.connection.owns(sender));
    }
}

struct Idle {
    connection: Box<Http1>,
    /// Number of the sweep that closes the connection.
    until: u32,
    _counted: Counted,
}

/// Guard that adds one to a shared counter until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// Returns `None` if the counter has reached `max`.
    fn one(of: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let counted = Counted(of.clone());
        (of.fetch_add(1, Ordering::Relaxed) < max).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Multiplexed {
    connection: Http2,
    until: u32,
}

pub(crate) enum Channel {
    Http1(Box<Http1>),
    Http2(Sender),
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
            connector: Connector::new(options)?,
            in_flight_per_authority_max: options.in_flight_per_authority_max.clamp(1, Semaphore::MAX_PERMITS),
            idle_max: options.idle_connections_max,
            idle_sweeps_max: sweeps(options.idle_timeout, sweep_period),
            sweep_period,
            sweeps: AtomicU32::new(0),
            idle: Arc::new(AtomicUsize::new(0)),
            opened: AtomicU64::new(0),
            authorities: Mutex::new(HashMap::new()),
        })
    }

    /// Returns the authority of `connect_to` (scheme, lower-case host and port) for tenants with the policy
    /// `egress`.
    pub(crate) fn authority(&self, connect_to: &Uri, egress: &Egress) -> Arc<Authority> {
        let egress = Arc::new(egress.clone());
        let key = (connect_to.clone(), egress.clone());
        let mut authorities = lock(&self.authorities);
        if let Some(authority) = authorities.get(&key).and_then(Weak::upgrade) {
            return authority;
        }
        let authority = Arc::new(Authority {
            connect_to: connect_to.clone(),
            egress,
            slots: Semaphore::new(self.in_flight_per_authority_max),
            idle: Mutex::new(Vec::new()),
            http2: Mutex::new(None),
            connect_turn: Semaphore::new(1),
            is_http1: AtomicBool::new(connect_to.scheme_str() == Some("http")),
        });
        authorities.insert(key, Arc::downgrade(&authority));
        authority
    }

    /// Returns a connection that can take a request, and true if the connection is reused.
    // The code boxes the future that connects. Connecting is rare, and its large state would enlarge every attempt's
    // future.
    pub(crate) async fn channel(&self, authority: &Authority) -> Result<(Channel, bool), Failure> {
        if let Some(channel) = self.reuse(authority).await {
            return Ok((channel, true));
        }
        if authority.is_http1.load(Ordering::Relaxed) {
            return Ok((Box::pin(self.connect(authority)).await?, false));
        }
        Box::pin(self.connect_in_turn(authority)).await
    }

    async fn connect_in_turn(&self, authority: &Authority) -> Result<(Channel, bool), Failure> {
        let turn = authority.connect_turn.acquire().await.expect("the semaphore is never closed");
        if let Some(channel) = self.reuse(authority).await {
            return Ok((channel, true));
        }
        // The previous holder of the permit may have found that the target uses HTTP/1.1. Then all waiting attempts
        // connect at once.
        let _turn = (!authority.is_http1.load(Ordering::Relaxed)).then_some(turn);
        Ok((self.connect(authority).await?, false))
    }

    async fn reuse(&self, authority: &Authority) -> Option<Channel> {
        if !authority.is_http1.load(Ordering::Relaxed) {
            let mut http2 = lock(&authority.http2);
            if let Some(multiplexed) = http2.as_mut() {
                multiplexed.until = self.sweeps_until(None);
                if let Some(sender) = multiplexed.connection.sender() {
                    return Some(Channel::Http2(sender));
                }
            }
        }
        poll_fn(|context| Poll::Ready(self.take_idle(authority, context))).await.map(Channel::Http1)
    }

    fn take_idle(&self, authority: &Authority, context: &mut Context<'_>) -> Option<Box<Http1>> {
        loop {
            let mut connection = lock(&authority.idle).pop()?.connection;
            if connection.is_ready(context) {
                return Some(connection);
            }
        }
    }

    async fn connect(&self, authority: &Authority) -> Result<Channel, Failure> {
        let (stream, is_http2) = self.connector.connect(authority.connect_to.clone(), &authority.egress).await?;
        self.opened.fetch_add(1, Ordering::Relaxed);
        if !is_http2 {
            authority.is_http1.store(true, Ordering::Relaxed);
            return Ok(Channel::Http1(Http1::start(stream).await?));
        }
        let connection = Http2::start(&self.runtime, stream).await?;
        let sender = connection.sender().ok_or_else(|| Failure::Broken("connection closed".to_owned()))?;
        *lock(&authority.http2) = Some(Multiplexed { connection, until: self.sweeps_until(None) });
        authority.is_http1.store(false, Ordering::Relaxed);
        Ok(Channel::Http2(sender))
    }

    /// Keeps a connection for the next callback if the connection is still usable and the limits allow another idle
    /// connection.
    pub(crate) async fn release(&self, authority: &Authority, mut connection: Box<Http1>) {
        if !poll_fn(|context| Poll::Ready(connection.is_ready(context))).await {
            return;
        }
        let Some(_counted) = Counted::one(&self.idle, self.idle_max) else { return };
        let until = self.sweeps_until(connection.keep_alive);
        lock(&authority.idle).push(Idle { connection, until, _counted });
    }

    /// Returns the sweep that closes a connection which becomes idle now. `keep_alive` is the target's own limit. The
    /// pool closes the connection a second earlier, because an attempt fails if the target closes the connection while
    /// the callback is in transit.
    fn sweeps_until(&self, keep_alive: Option<Duration>) -> u32 {
        let own = self.idle_sweeps_max;
        let sweeps_max = keep_alive.map_or(own, |limit| {
            own.min(sweeps(limit.saturating_sub(Duration::from_secs(1)), self.sweep_period).saturating_sub(1))
        });
        self.sweeps.load(Ordering::Relaxed).saturating_add(sweeps_max)
    }

    /// Closes connections that were idle for too long or that their target has closed, and removes authorities
    /// that no prepared target uses.
    pub(crate) fn sweep(&self) {
        let now = self.sweeps.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let mut live = Vec::new();
        lock(&self.authorities).retain(|_, authority| authority.upgrade().map(|found| live.push(found)).is_some());
        let context = &mut Context::from_waker(Waker::noop());
        for authority in live {
            lock(&authority.idle).retain_mut(|idle| idle.until > now && idle.connection.is_ready(context));
            let mut http2 = lock(&authority.http2);
            http2.take_if(|held| held.connection.is_closed() || (held.until <= now && held.connection.is_idle()));
        }
    }

    pub(crate) fn connections(&self) -> Connections {
        Connections { opened: self.opened.load(Ordering::Relaxed), idle: self.idle.load(Ordering::Relaxed) }
    }
}

/// Returns the number of periods in `duration`, at least 1.
fn sweeps(duration: Duration, period: Duration) -> u32 {
    u32::try_from(duration.as_nanos() / period.as_nanos().max(1)).unwrap_or(u32::MAX).max(1)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder of this lock panics")
}
