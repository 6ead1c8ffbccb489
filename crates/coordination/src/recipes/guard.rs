//! Guards of locks and leaderships.

use std::fmt;
use std::time::Duration;

use runtime::{Monotonic, Runtime, TaskSet};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::node::NodeGuard;
use crate::Term;
use crate::tree::session::{Session, SessionState};
use crate::tree::{Expected, Op, TreeError};

/// Time for which a guard remains valid while the engine does not respond.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Trust {
    /// The guard ends when a request gets no response. If the connection is lost only for a moment, the guard ends
    /// earlier than necessary.
    #[default]
    UntilSuspended,
    /// The guard ends at the session's deadline. It remains valid if the client connects to the engine again before the
    /// deadline.
    UntilLost,
}

/// Guard of a lock or a leadership. The guard has one owner and notifies the owner when the guard ends. A drop of the
/// guard releases the lock in the background. [`Held::release`] waits for the release.
///
/// The background removes the guard's node as soon as the engine responds, and gives up when the session ends. The
/// engine then removes the node itself, so another process can get the lock at the latest after the session's timeout.
#[must_use = "a drop of this value releases the lock or the leadership"]
pub struct Held {
    // Rust drops this field before the field `owned`, whose drop removes the node. The guard therefore ends before
    // another process can get the lock.
    _ends: DropGuard,
    validity: Validity,
    owned: NodeGuard,
    /// Additional step of the fence. It is necessary if the node of a later holder may have the same name as this
    /// holder's node.
    extra_check: Option<Op>,
    term: Term,
    _watching: TaskSet,
}

/// Validity of a guard. The owner of the guard and the tasks that run under the guard share this value.
#[derive(Clone, Debug)]
struct Validity {
    over: CancellationToken,
    session: Session,
    runtime: Runtime,
}

impl Validity {
    fn is_valid(&self) -> bool {
        !self.over.is_cancelled() && self.session.is_valid(self.runtime.monotonic())
    }
}

impl Held {
    /// Creates a guard that ends when a process or the engine removes the holder's node.
    pub(super) async fn new(owned: NodeGuard, trust: Trust) -> Result<Held, TreeError> {
        Held::until_withdrawn(owned, None, trust, std::future::pending()).await
    }

    /// Creates a guard like [`Held::new`]. The guard also ends when the future `withdrawn` completes, and its fence
    /// includes `extra_check`.
    pub(super) async fn until_withdrawn(
        owned: NodeGuard,
        extra_check: Option<Op>,
        trust: Trust,
        withdrawn: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Held, TreeError> {
        let (session, over) = (owned.node().tree.session().clone(), CancellationToken::new());
        let mut state = session.state();
        let trusted = state.wait_for(|state| trust == Trust::UntilLost || *state != SessionState::Suspended).await;
        if trusted.map_or(true, |state| state.is_lost()) {
            return Err(TreeError::SessionLost);
        }
        let runtime = owned.node().client.runtime().clone();
        let watching = TaskSet::new(&runtime);
        let (ended, watched, node) = (over.clone(), session.clone(), owned.node().clone());
        watching.spawn("hold", async move {
            tokio::select! {
                biased;
                () = untrusted(&watched, trust) => {}
                _ = node.gone() => {}
                () = withdrawn => {}
            }
            ended.cancel();
        });
        let term = Term::of_change(owned.node().created);
        let ends = over.clone().drop_guard();
        Ok(Held {
            _ends: ends,
            validity: Validity { over, session, runtime },
            owned,
            extra_check,
            term,
            _watching: watching,
        })
    }

    /// Returns the term of this holder. It is greater than the term of every earlier holder.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    /// Returns true if the guard is valid at this moment.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.validity.is_valid()
    }

    /// Returns the instant at which the guard ends if the engine does not respond before this instant. A supervisor
    /// outside this process can end the work that needs the guard at this instant, even while this process is paused.
    #[must_use]
    pub fn deadline(&self) -> Monotonic {
        self.validity.session.deadline()
    }

    /// Completes when the guard has ended because its node was deleted or the engine no longer responds.
    pub async fn cancelled(&self) {
        self.validity.over.cancelled().await;
    }

    /// Returns a token that is cancelled when the guard ends or its owner releases it. A caller that cancels the token
    /// does not affect the guard.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.validity.over.child_token()
    }

    /// Returns steps that a writer adds to a multi. If the writer no longer holds the lock, the engine rejects the
    /// multi, even if the writer does not know yet that it has lost the lock.
    #[must_use]
    pub fn fence(&self) -> Vec<Op> {
        let own = Op::Check { path: self.owned.node().path.clone(), expected: Expected::Any };
        std::iter::once(own).chain(self.extra_check.clone()).collect()
    }

    /// Releases the lock. Waits for the engine for at most 1 s. If the engine does not respond in this time, the release
    /// continues in the background, as after a drop of the guard.
    pub async fn release(self) {
        self.validity.over.cancel();
        self.owned.release().await;
    }
}

/// Completes when `trust` requires that the guard ends.
async fn untrusted(session: &Session, trust: Trust) {
    let mut state = session.state();
    let is_over = |state: &SessionState| match trust {
        Trust::UntilSuspended => *state != SessionState::Connected,
        Trust::UntilLost => state.is_lost(),
    };
    // The session owns the sender of its state, so the wait for a state cannot fail while the session exists.
    drop(state.wait_for(is_over).await);
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("path", &self.owned.node().path).field("term", &self.term).finish_non_exhaustive()
    }
}

/// Way in which a task that ran under a guard has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended<T> {
    /// The task ended while the guard was valid.
    Done(T),
    /// The task ended within the grace period after the guard had ended or a caller had cancelled `stop`.
    DoneInGrace(T),
    /// The task ran longer than the grace period, so [`Held::run`] dropped it.
    Aborted,
}

/// View of a guard for the task that runs under the guard.
#[derive(Clone, Debug)]
pub struct Leading {
    /// Term of the leadership. The task sends the term with every write.
    pub term: Term,
    /// Steps of [`Held::fence`]. The task adds them to every write to the tree that contains the lock.
    pub fence: Vec<Op>,
    /// Token that the guard or [`Held::run`] cancels when the task must end.
    pub over: CancellationToken,
    validity: Validity,
}

impl Leading {
    /// Returns true if the guard is valid, like [`Held::is_valid`]. The task calls this function right before an action
    /// that it cannot undo. A check of the token [`Leading::over`] is not sufficient: after a pause of the process, the
    /// task may reach the action before another task cancels the token. The guard may still be valid after
    /// [`Held::run`] has cancelled the token.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.validity.is_valid()
    }
}

impl Held {
    /// Runs `task` until it ends, and then releases the lock. When the guard ends or a caller cancels `stop`, the
    /// function cancels [`Leading::over`], and the task must end. If the task does not end within `grace`, the function
    /// drops it.
    pub async fn run<T, F>(self, stop: &CancellationToken, grace: Duration, task: impl FnOnce(Leading) -> F) -> Ended<T>
    where
        F: Future<Output = T>,
    {
        let (over, validity) = (self.token(), self.validity.clone());
        let leading = Leading { term: self.term, fence: self.fence(), over: over.clone(), validity };
        let mut working = Box::pin(task(leading));
        let stopping = async {
            tokio::select! {
                biased;
                () = over.cancelled() => {}
                () = stop.cancelled() => over.cancel(),
            }
        };
        let ended = tokio::select! {
            biased;
            () = stopping => match self.validity.runtime.timeout(grace, &mut working).await {
                Some(done) => Ended::DoneInGrace(done),
                None => Ended::Aborted,
            },
            done = &mut working => Ended::Done(done),
        };
        drop(working);
        self.release().await;
        ended
    }
}
