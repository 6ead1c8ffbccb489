//! Connections, by scheme, host, port, and the policy under which they were opened: a tenant never rides on a connection
//! that its own policy, as it is now, would not have opened.

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
    /// Sweeps that a connection may stay idle for.
    idle_sweeps_max: u32,
    sweep_period: Duration,
    /// Counts the sweeps: the clock of idleness, which costs nothing to read.
    sweeps: AtomicU32,
    idle: Arc<AtomicUsize>,
    opened: AtomicU64,
    authorities: Mutex<HashMap<Place, Weak<Authority>>>,
}

/// Where an authority is, and under which policy.
type Place = (Uri, Arc<Egress>);

/// One scheme, host and port under one policy, with its connections. Kept by the prepared targets that go there.
pub(crate) struct Authority {
    /// `https://host:port/`.
    connect_to: Uri,
    /// What connections there are allowed by.
    pub(crate) egress: Arc<Egress>,
    /// One for each exchange in flight.
    pub(crate) slots: Semaphore,
    /// The last one used is taken first, so that those that are not needed grow old.
    idle: Mutex<Vec<Idle>>,
    http2: Mutex<Option<Multiplexed>>,
    /// Held while connecting to a target that may speak HTTP/2, for which one connection serves all.
    connect_turn: Semaphore,
    /// No HTTP/2: plain text, or the target chose HTTP/1.1 when it last could choose.
    is_http1: AtomicBool,
}

impl Authority {
    /// Makes the next callback open a connection, if the present one is still `sender`'s.
    pub(crate) fn forget(&self, sender: &Sender) {
        lock(&self.http2).take_if(|held| held.connection.is_of(sender));
    }
}

struct Idle {
    connection: Box<Http1>,
    /// To be closed when so many sweeps have been.
    until: u32,
    _counted: Counted,
}

/// One in a number, for as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// `None` if there are `max` already.
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

/// How often idle connections are looked at; the grain of [`Options::idle_timeout`].
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

    /// The place of `connect_to` (its scheme, lower-case host and port), for tenants that may call what `egress` allows.
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

    /// A connection that can take a request, and whether it served before.
    // Connecting is boxed: it is rare, its state is large, and every attempt's future would be as large.
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
        // Whoever had the turn before may have found that connections cannot be shared: then all may connect at once.
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

    /// Keeps a connection for the next callback, if it and the limits allow that.
    pub(crate) async fn give_back(&self, authority: &Authority, mut connection: Box<Http1>) {
        if !poll_fn(|context| Poll::Ready(connection.is_ready(context))).await {
            return;
        }
        let Some(_counted) = Counted::one(&self.idle, self.idle_max) else { return };
        let until = self.sweeps_until(connection.keep_alive);
        lock(&authority.idle).push(Idle { connection, until, _counted });
    }

    /// The sweep at which a connection that is left now is closed. `keep_alive` is the target's own limit: it is left
    /// a second before, because a target that closes while a callback is on its way makes that attempt fail.
    fn sweeps_until(&self, keep_alive: Option<Duration>) -> u32 {
        let own = self.idle_sweeps_max;
        let sweeps_max = keep_alive.map_or(own, |limit| {
            own.min(sweeps(limit.saturating_sub(Duration::from_secs(1)), self.sweep_period).saturating_sub(1))
        });
        self.sweeps.load(Ordering::Relaxed).saturating_add(sweeps_max)
    }

    /// Closes connections that were idle for too long, or whose target has closed, and forgets authorities that no
    /// prepared target goes to any more.
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

/// At least one.
fn sweeps(duration: Duration, period: Duration) -> u32 {
    u32::try_from(duration.as_nanos() / period.as_nanos().max(1)).unwrap_or(u32::MAX).max(1)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder of this lock panics")
}
