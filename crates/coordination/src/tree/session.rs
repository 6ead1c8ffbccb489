//! State of a session in the process that opened it. The process knows this state only from the engine's responses and
//! the clock of its machine.
//!
//! The engine ends a session when the timeout has passed since the *engine* received the last request or ping. This
//! process ends the session earlier, four fifths of the timeout after it *sent* the last request that got a response.
//! The session therefore always ends in the process first, unless the clock of this machine is slower than the engine's
//! clock by a fifth.
//!
//! On ZooKeeper, this margin of a fifth of the timeout is not certain if the timeout is shorter than two and a half
//! ticks. ZooKeeper's minimum is two ticks. A ZooKeeper follower reports sessions to its leader only every half tick.
//! If the follower dies just before a report, the leader may end the session up to half a tick too early. With a longer
//! timeout, a part of the margin remains.
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

/// Id that the engine gives to a session. An engine never uses the same id twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub i64);

/// Formats the id in hexadecimal with the prefix `0x`, like ZooKeeper's tools.
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

/// State of a session, as the process that opened the session knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionState {
    /// The engine responds.
    Connected,
    /// The engine has not responded recently. The session ends at its deadline, unless the engine responds before the
    /// deadline.
    Suspended,
    /// The session has ended, or may have ended. This process no longer uses the session.
    Lost,
}

impl SessionState {
    /// Returns true for [`SessionState::Lost`]. No other state follows this state.
    #[must_use]
    pub fn is_lost(self) -> bool {
        self == SessionState::Lost
    }
}

/// Handle of a session's state. A clone of the handle is cheap.
#[derive(Clone)]
pub struct Session(Arc<Inner>);

struct Inner {
    id: SessionId,
    timeout: Duration,
    deadline: Deadline,
    state: watch::Sender<SessionState>,
}

impl Session {
    /// Creates the state of the session `id`. Engines call this function after they have opened the session. `sent` is
    /// the instant at which they sent the request that opened the session.
    #[must_use]
    pub fn new(id: SessionId, timeout: Duration, sent: Monotonic) -> Self {
        let deadline = Deadline::new(deadline(sent, timeout));
        Session(Arc::new(Inner { id, timeout, deadline, state: watch::Sender::new(SessionState::Connected) }))
    }

    /// Returns the id that the engine gave to the session.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.0.id
    }

    /// Returns the timeout that the engine uses for this session.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// Returns a receiver of the present state and of all later states.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<SessionState> {
        self.0.state.subscribe()
    }

    /// Returns the deadline of the session. If the engine does not respond before this instant, this process treats the
    /// session as ended.
    #[must_use]
    pub fn deadline(&self) -> Monotonic {
        self.0.deadline.at()
    }

    /// Returns true if the session is valid at `now`, which must be the present instant. The locks and ephemeral nodes
    /// of a valid session still exist.
    #[must_use]
    pub fn is_valid(&self, now: Monotonic) -> bool {
        self.0.deadline.is_ahead(now)
    }

    /// Completes when the session has ended.
    pub async fn lost(&self) {
        // `self` owns the sender of the states, so the wait for a state cannot fail.
        drop(self.state().wait_for(|state| state.is_lost()).await);
    }

    /// Completes when the deadline of the session has passed. Engines call this function.
    pub async fn deadline_passed(&self, runtime: &Runtime) {
        while self.is_valid(runtime.monotonic()) {
            runtime.sleep_until(self.deadline()).await;
        }
    }

    /// Records a response to a request that this process sent at `sent`. Engines call this function.
    pub fn answered(&self, now: Monotonic, sent: Monotonic) {
        if self.0.deadline.extend(now, deadline(sent, self.0.timeout)) {
            self.become_unless_lost(SessionState::Connected);
        }
    }

    /// Records that the engine has renewed the session on a request that this process sent at `sent`. The state stays
    /// the same until a response follows. Engines call this function.
    pub fn renewed(&self, now: Monotonic, sent: Monotonic) {
        self.0.deadline.extend(now, deadline(sent, self.0.timeout));
    }

    /// Records that a request got no response. Engines call this function.
    pub fn suspend(&self) {
        self.become_unless_lost(SessionState::Suspended);
    }

    /// Records that the session has ended, or that this process will no longer learn its state. Engines call this
    /// function.
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
    sent + if timeout == Duration::MAX { timeout } else { timeout - timeout / 5 }
}

/// Sends pings until the session has ended, and then marks the session as lost. Engines call this function. `ping` is
/// any request that renews the session.
pub async fn keep(
    runtime: &Runtime,
    session: &Session,
    ping: impl Fn() -> BoxFuture<'static, Result<(), TreeError>> + Send,
) {
    tokio::select! {
        biased;
        () = session.lost() => {}
        () = session.deadline_passed(runtime) => {}
        () = ping_until_lost(runtime, session, ping) => {}
    }
    session.lose();
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

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn seconds(count: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(count))
    }

    /// Starts a task that sends pings for a session. The first `answered` pings get a response at once. Later pings
    /// fail with the error `then`, or get no response if `then` is `None`.
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
    fn session_without_responses_is_lost_before_its_timeout() {
        let simulation = Simulation::new(3);
        simulation.run_until(async {
            let runtime = simulation.outside();
            let start = runtime.monotonic();
            let (session, tasks) = kept_alive(&runtime, 5, None);
            let mut state = session.state();
            // The pings at 0, 1.25, 2.5, 3.75 and 5 s get a response. The ping at 6.25 s does not.
            let suspended = state.wait_for(|state| *state == SessionState::Suspended).await.map(|state| *state);
            assert_eq!(suspended.ok(), Some(SessionState::Suspended));
            assert!(session.is_valid(runtime.monotonic()));
            session.lost().await;
            let lived = runtime.monotonic().since(start);
            assert!(lived >= Duration::from_secs(5 + 8) && lived < Duration::from_secs(5 + 9), "{lived:?}");
            assert!(!session.is_valid(runtime.monotonic()));
            tasks.join().await;
        });
    }

    #[test]
    fn session_that_the_engine_does_not_know_is_lost_at_once() {
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
    fn regular_responses_keep_a_session_valid_and_end_its_suspension() {
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
    fn renewed_session_stays_suspended_until_a_response() {
        let session = Session::new(SessionId(7), TIMEOUT, seconds(0));
        session.suspend();
        session.renewed(seconds(3), seconds(2));
        assert_eq!((session.deadline(), *session.state().borrow()), (seconds(10), SessionState::Suspended));
        session.answered(seconds(4), seconds(3));
        assert_eq!((session.deadline(), *session.state().borrow()), (seconds(11), SessionState::Connected));
    }

    #[test]
    fn lost_session_stays_lost_after_a_late_response() {
        let session = Session::new(SessionId(7), TIMEOUT, seconds(0));
        assert_eq!(session.deadline(), seconds(8));
        session.answered(seconds(1), seconds(1));
        assert_eq!(session.deadline(), seconds(9));
        session.lose();
        session.answered(seconds(2), seconds(2));
        session.suspend();
        assert!(!session.is_valid(seconds(2)) && session.state().borrow().is_lost());
        assert_eq!(format!("{:?}", SessionId(0x1_0000_002a)), "0x10000002a");
    }
}
