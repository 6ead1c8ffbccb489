//! The state of a session as its own process knows it, from the engine's responses and this machine's clock alone.
//!
//! The engine ends a session when the timeout has passed since the last sign of life that the *engine* saw. This
//! process ends it earlier: three quarters of the timeout after it *sent* the last request that was answered. The local
//! end comes first whatever the network does, as long as this machine's clock is not slower than the engine's by a
//! quarter. (A ZooKeeper follower reports sessions to its leader every half tick. At the shortest timeout, two ticks,
//! half a tick is the whole quarter, so the death of a follower at that moment removes the margin. Use a longer timeout
//! where this matters.)
//!
//! Invariants: an ended session never becomes valid again. After [`Session::is_valid`] has returned false, it never
//! returns true.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use instants::{Deadline, Monotonic};
use runtime::Runtime;
use tokio::sync::watch;

use super::TreeError;

/// Id that the engine gives to a session. An engine never gives the same id twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub i64);

/// Formats the id like ZooKeeper's tools.
impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:x}", self.0)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionState {
    /// The engine responds.
    Connected,
    /// The engine has not responded recently. The session lives until its deadline, and longer if the engine responds
    /// before.
    Suspended,
    /// The session has ended, or may have ended. It is not used any more.
    Lost,
}

impl SessionState {
    #[must_use]
    pub fn is_lost(self) -> bool {
        self == SessionState::Lost
    }
}

/// Handle of a session's state. Cloning it is cheap.
#[derive(Clone)]
pub struct Session(Arc<Inner>);

struct Inner {
    id: SessionId,
    timeout: Duration,
    deadline: Deadline,
    state: watch::Sender<SessionState>,
}

impl Session {
    /// Creates the state of the session `id`, which was opened by a request sent at `sent`. Engines call it.
    #[must_use]
    pub fn new(id: SessionId, timeout: Duration, sent: Monotonic) -> Self {
        let deadline = Deadline::new(deadline(sent, timeout));
        Session(Arc::new(Inner { id, timeout, deadline, state: watch::Sender::new(SessionState::Connected) }))
    }

    #[must_use]
    pub fn id(&self) -> SessionId {
        self.0.id
    }

    /// Timeout that the engine uses.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// Receiver of the present state and of all later ones.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<SessionState> {
        self.0.state.subscribe()
    }

    /// First instant at which the session counts as ended in this process, unless the engine responds before.
    #[must_use]
    pub fn deadline(&self) -> Monotonic {
        self.0.deadline.at()
    }

    /// Returns true if the locks and nodes of this session may be relied on at `now`, the present instant.
    #[must_use]
    pub fn is_valid(&self, now: Monotonic) -> bool {
        self.0.deadline.is_ahead(now)
    }

    /// Completes when the session has ended.
    pub async fn lost(&self) {
        // The sender lives as long as `self`, so the wait cannot fail.
        drop(self.state().wait_for(|state| state.is_lost()).await);
    }

    /// Records a response to a request that was sent at `sent`. Engines call it.
    pub fn answered(&self, now: Monotonic, sent: Monotonic) {
        if self.0.deadline.extend(now, deadline(sent, self.0.timeout)) {
            self.become_unless_lost(SessionState::Connected);
        }
    }

    /// Records a request without a response. Engines call it.
    pub fn suspend(&self) {
        self.become_unless_lost(SessionState::Suspended);
    }

    /// Records that the session has ended or that its state will not be known again. Engines call it.
    pub fn lose(&self) {
        self.0.deadline.end();
        self.0.state.send_if_modified(|state| std::mem::replace(state, SessionState::Lost) != SessionState::Lost);
    }

    fn become_unless_lost(&self, next: SessionState) {
        self.0.state.send_if_modified(|state| {
            let is_new = !state.is_lost() && *state != next;
            if is_new {
                *state = next;
            }
            is_new
        });
    }
}

fn deadline(sent: Monotonic, timeout: Duration) -> Monotonic {
    sent + if timeout == Duration::MAX { timeout } else { timeout - timeout / 4 }
}

/// Sends pings until the session has ended, and then marks the session as lost. Engines call it. `ping` is any request
/// that the engine counts as a sign of life.
pub async fn keep(
    runtime: &Runtime,
    session: &Session,
    ping: impl Fn() -> BoxFuture<'static, Result<(), TreeError>> + Send,
) {
    tokio::select! {
        biased;
        () = session.lost() => {}
        () = deadline_passed(runtime, session) => {}
        () = ping_until_lost(runtime, session, ping) => {}
    }
    session.lose();
}

/// Completes when the deadline has passed.
async fn deadline_passed(runtime: &Runtime, session: &Session) {
    while session.is_valid(runtime.monotonic()) {
        runtime.sleep_until(session.deadline()).await;
    }
}

/// Sends pings until the engine responds that the session does not exist.
async fn ping_until_lost(
    runtime: &Runtime,
    session: &Session,
    ping: impl Fn() -> BoxFuture<'static, Result<(), TreeError>> + Send,
) {
    let period = session.timeout() / 8;
    loop {
        let sent = runtime.monotonic();
        match runtime.timeout(period * 2, ping()).await {
            Some(Err(TreeError::SessionLost)) => return,
            Some(Ok(())) => session.answered(runtime.monotonic(), sent),
            Some(Err(_)) | None => session.suspend(),
        }
        runtime.sleep_until(sent + period).await;
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({}, {:?} until {:?})", self.id(), *self.0.state.borrow(), self.deadline().since_start())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::FutureExt as _;
    use runtime::TaskSet;
    use simulator::Simulation;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(8);

    fn seconds(count: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(count))
    }

    /// Keeps a session alive. The first `answered` pings get a response at once.
    fn kept_alive(runtime: &Runtime, answered: u32, then: Option<TreeError>) -> (Session, TaskSet) {
        let session = Session::new(SessionId(7), TIMEOUT, runtime.monotonic());
        let tasks = TaskSet::new(runtime);
        let (pings, keeper, task_runtime) = (AtomicU32::new(0), session.clone(), runtime.clone());
        tasks.spawn("keeper", async move {
            let ping = || match (pings.fetch_add(1, Ordering::Relaxed) < answered, &then) {
                (true, _) => async { Ok(()) }.boxed(),
                (false, Some(error)) => std::future::ready(Err(error.clone())).boxed(),
                (false, None) => std::future::pending().boxed(),
            };
            keep(&task_runtime, &keeper, ping).await;
        });
        (session, tasks)
    }

    #[test]
    fn unanswered_session_is_suspended_then_lost_before_its_timeout() {
        let simulation = Simulation::new(3);
        simulation.run_until(async {
            let runtime = simulation.outside();
            let start = runtime.monotonic();
            let (session, tasks) = kept_alive(&runtime, 5, None);
            let mut state = session.state();
            // The pings at 0, 1, 2, 3 and 4 s get a response. The ping at 5 s does not.
            let suspended = state.wait_for(|state| *state == SessionState::Suspended).await.map(|state| *state);
            assert_eq!(suspended.ok(), Some(SessionState::Suspended));
            assert!(session.is_valid(runtime.monotonic()));
            session.lost().await;
            let lived = runtime.monotonic().since(start);
            assert!(lived >= Duration::from_secs(4 + 6) && lived < Duration::from_secs(4 + 7), "{lived:?}");
            assert!(!session.is_valid(runtime.monotonic()));
            tasks.join().await;
        });
    }

    #[test]
    fn session_unknown_to_the_engine_is_lost_at_once() {
        let simulation = Simulation::new(3);
        simulation.run_until(async {
            let runtime = simulation.outside();
            let start = runtime.monotonic();
            let (session, tasks) = kept_alive(&runtime, 1, Some(TreeError::SessionLost));
            session.lost().await;
            assert!(runtime.monotonic().since(start) < Duration::from_secs(2));
            tasks.join().await;
        });
    }

    #[test]
    fn answered_session_stays_valid_and_reconnects() {
        let simulation = Simulation::new(3);
        simulation.run_until(async {
            let runtime = simulation.outside();
            let (session, _tasks) = kept_alive(&runtime, u32::MAX, None);
            runtime.sleep(TIMEOUT * 10).await;
            assert!(session.is_valid(runtime.monotonic()));
            session.suspend();
            assert_eq!(*session.state().borrow(), SessionState::Suspended);
            runtime.sleep(TIMEOUT / 4).await;
            assert_eq!(*session.state().borrow(), SessionState::Connected);
        });
    }

    #[test]
    fn lost_session_stays_lost() {
        let session = Session::new(SessionId(7), TIMEOUT, seconds(0));
        assert_eq!(session.deadline(), seconds(6));
        session.answered(seconds(1), seconds(1));
        assert_eq!(session.deadline(), seconds(7));
        session.lose();
        session.answered(seconds(2), seconds(2));
        session.suspend();
        assert!(!session.is_valid(seconds(2)) && session.state().borrow().is_lost());
        assert_eq!(format!("{:?}", SessionId(0x1_0000_002a)), "0x10000002a");
    }
}
