//! A session's life as its own process knows it: by answers, and by this machine's clock alone.
//!
//! The engine ends a session a timeout after the last sign of life that *it* saw. Here it ends three quarters of the timeout after the last
//! answered request was *sent*: earlier, whatever the network does, if this machine's clock does not run slower than the engine's by
//! a quarter. (A follower of ZooKeeper tells its leader of sessions every half tick, which is that whole quarter at the shortest timeout,
//! of two ticks: who cares for the case that this follower dies at that moment asks for more.)
//!
//! Always true here: a session that has ended never lives again; of two looks at [`Session::is_valid`] the later is never true after
//! a false one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use instants::{Deadline, Monotonic};
use runtime::Runtime;
use tokio::sync::watch;

use super::TreeError;

/// Of the engine; never given twice by one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub i64);

/// As ZooKeeper's tools write it.
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
    /// The engine answers.
    Connected,
    /// It did not answer lately: the session lives until its deadline, unless it answers before.
    Suspended,
    /// It has ended, or may have: it is not used any more.
    Lost,
}

impl SessionState {
    #[must_use]
    pub fn is_lost(self) -> bool {
        self == SessionState::Lost
    }
}

/// A cheap clone.
#[derive(Clone)]
pub struct Session(Arc<Inner>);

struct Inner {
    id: SessionId,
    timeout: Duration,
    deadline: Deadline,
    state: watch::Sender<SessionState>,
}

impl Session {
    /// For engines: the session `id` was opened by a request that was sent at `sent`.
    #[must_use]
    pub fn new(id: SessionId, timeout: Duration, sent: Monotonic) -> Self {
        let deadline = Deadline::new(deadline(sent, timeout));
        Session(Arc::new(Inner { id, timeout, deadline, state: watch::Sender::new(SessionState::Connected) }))
    }

    #[must_use]
    pub fn id(&self) -> SessionId {
        self.0.id
    }

    /// As the engine has it.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// The present state, and all later ones.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<SessionState> {
        self.0.state.subscribe()
    }

    /// The first instant at which it has ended here, unless the engine answers before.
    #[must_use]
    pub fn deadline(&self) -> Monotonic {
        self.0.deadline.at()
    }

    /// Whether what it holds may be relied on at `now`, the present instant.
    #[must_use]
    pub fn is_valid(&self, now: Monotonic) -> bool {
        self.0.deadline.is_ahead(now)
    }

    /// Ready when it has ended.
    pub async fn lost(&self) {
        // The sender lives as long as this does.
        drop(self.state().wait_for(|state| state.is_lost()).await);
    }

    /// For engines: a request that was sent at `sent` was answered.
    pub fn answered(&self, now: Monotonic, sent: Monotonic) {
        if self.0.deadline.extend(now, deadline(sent, self.0.timeout)) {
            self.become_unless_lost(SessionState::Connected);
        }
    }

    /// For engines: a request was not answered.
    pub fn suspend(&self) {
        self.become_unless_lost(SessionState::Suspended);
    }

    /// For engines: it has ended, or nothing more will be heard of it.
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

/// For engines: asks again and again, until the session has ended. `ping` is any request that the engine counts as a sign of
/// life.
pub async fn keep(
    runtime: &Runtime,
    session: &Session,
    ping: impl Fn() -> BoxFuture<'static, Result<(), TreeError>> + Send,
) {
    tokio::select! {
        biased;
        () = session.lost() => {}
        () = over(runtime, session) => {}
        () = ask(runtime, session, ping) => {}
    }
    session.lose();
}

/// Until the deadline has passed.
async fn over(runtime: &Runtime, session: &Session) {
    while session.is_valid(runtime.monotonic()) {
        runtime.sleep_until(session.deadline()).await;
    }
}

/// Until the engine says that there is no such session.
async fn ask(
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

    /// Keeps a session whose first `answered` pings are answered, at once.
    fn kept(runtime: &Runtime, answered: u32, then: Option<TreeError>) -> (Session, TaskSet) {
        let session = Session::new(SessionId(7), TIMEOUT, runtime.monotonic());
        let tasks = TaskSet::new(runtime);
        let (asked, keeper, world) = (AtomicU32::new(0), session.clone(), runtime.clone());
        tasks.spawn("keeper", async move {
            let ping = || match (asked.fetch_add(1, Ordering::Relaxed) < answered, &then) {
                (true, _) => async { Ok(()) }.boxed(),
                (false, Some(error)) => std::future::ready(Err(error.clone())).boxed(),
                (false, None) => std::future::pending().boxed(),
            };
            keep(&world, &keeper, ping).await;
        });
        (session, tasks)
    }

    #[test]
    fn a_session_that_is_not_answered_is_suspended_and_then_lost_before_its_engine_ends_it() {
        let simulation = Simulation::new(3);
        simulation.run_until(async {
            let runtime = simulation.outside();
            let start = runtime.monotonic();
            let (session, tasks) = kept(&runtime, 5, None);
            let mut state = session.state();
            // Asked at 0, 1, 2, 3 and 4 s, and answered; asked at 5 s, and not.
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
    fn a_session_that_the_engine_does_not_know_is_lost_at_once() {
        let simulation = Simulation::new(3);
        simulation.run_until(async {
            let runtime = simulation.outside();
            let start = runtime.monotonic();
            let (session, tasks) = kept(&runtime, 1, Some(TreeError::SessionLost));
            session.lost().await;
            assert!(runtime.monotonic().since(start) < Duration::from_secs(2));
            tasks.join().await;
        });
    }

    #[test]
    fn a_session_that_is_answered_goes_on_and_comes_back() {
        let simulation = Simulation::new(3);
        simulation.run_until(async {
            let runtime = simulation.outside();
            let (session, _tasks) = kept(&runtime, u32::MAX, None);
            runtime.sleep(TIMEOUT * 10).await;
            assert!(session.is_valid(runtime.monotonic()));
            session.suspend();
            assert_eq!(*session.state().borrow(), SessionState::Suspended);
            runtime.sleep(TIMEOUT / 4).await;
            assert_eq!(*session.state().borrow(), SessionState::Connected);
        });
    }

    #[test]
    fn what_is_lost_stays_lost() {
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
