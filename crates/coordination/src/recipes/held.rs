//! What is held until it is given back, or lost.

use std::fmt;
use std::time::Duration;

use runtime::{Monotonic, Runtime, TaskSet};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::node::Owned;
use crate::Term;
use crate::tree::session::{Session, SessionState};
use crate::tree::{Expected, Op, TreeError};

/// How long a hold is trusted without an answer of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Trust {
    /// Until a request is not answered. Ends sooner than it had to when a connection is lost for a moment.
    #[default]
    UntilSuspended,
    /// Until the session's deadline: holds through what is mended before that.
    UntilLost,
}

/// Not shared with anybody, and over when it says so. Dropped, it is given back; [`Held::release`] waits for it.
#[must_use = "dropped, it is given back"]
pub struct Held {
    // Before what it owns, so that it is over before that can be another's.
    _ends: DropGuard,
    hold: Hold,
    owned: Owned,
    /// What else must be so, where the node's name comes to be another's.
    besides: Option<Op>,
    term: Term,
    _watching: TaskSet,
}

/// Whether it may be relied on, for who has it and for all that were told of it.
#[derive(Clone, Debug)]
struct Hold {
    over: CancellationToken,
    session: Session,
    runtime: Runtime,
}

impl Hold {
    fn is_valid(&self) -> bool {
        !self.over.is_cancelled() && self.session.is_valid(self.runtime.monotonic())
    }
}

impl Held {
    /// What this process has by a node of its own, until that goes.
    pub(super) async fn of(owned: Owned, trust: Trust) -> Result<Held, TreeError> {
        Held::until(owned, None, trust, std::future::pending()).await
    }

    /// As [`Held::of`], and no longer than until it is `withdrawn`; its fence asks for `besides`, too.
    pub(super) async fn until(
        owned: Owned,
        besides: Option<Op>,
        trust: Trust,
        withdrawn: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Held, TreeError> {
        let (session, over) = (owned.node().tree.session().clone(), CancellationToken::new());
        let mut state = session.state();
        let settled = state.wait_for(|state| trust == Trust::UntilLost || *state != SessionState::Suspended).await;
        if settled.map_or(true, |state| state.is_lost()) {
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
        let term = Term(u64::try_from(owned.node().created.0).unwrap_or(0));
        let ends = over.clone().drop_guard();
        Ok(Held { _ends: ends, hold: Hold { over, session, runtime }, owned, besides, term, _watching: watching })
    }

    /// Above that of every earlier holder.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    /// Whether it may be relied on at this moment.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.hold.is_valid()
    }

    /// When it is over unless the engine answers before: whoever does something that stands still with this process, too, ends it then.
    #[must_use]
    pub fn deadline(&self) -> Monotonic {
        self.hold.session.deadline()
    }

    /// Ready when it is over: its node was taken away, or the engine is not heard of.
    pub async fn cancelled(&self) {
        self.hold.over.cancelled().await;
    }

    /// Cancelled when it is over, or given back; cancelling it does nothing to the hold.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.hold.over.child_token()
    }

    /// The steps that make a multi fail once this is over, even if its writer does not know that yet.
    #[must_use]
    pub fn fence(&self) -> Vec<Op> {
        let own = Op::Check { path: self.owned.node().path.clone(), expected: Expected::Any };
        std::iter::once(own).chain(self.besides.clone()).collect()
    }

    /// Gives it back. If the engine does not answer, that goes on in the background.
    pub async fn release(self) {
        self.hold.over.cancel();
        self.owned.release().await;
    }
}

/// Ready when the session is not trusted any more.
async fn untrusted(session: &Session, trust: Trust) {
    let mut state = session.state();
    let is_over = |state: &SessionState| match trust {
        Trust::UntilSuspended => *state != SessionState::Connected,
        Trust::UntilLost => state.is_lost(),
    };
    // The sender lives as long as the session does.
    drop(state.wait_for(is_over).await);
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("path", &self.owned.node().path).field("term", &self.term).finish_non_exhaustive()
    }
}

/// How a task ended that was run while something was held.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended<T> {
    /// By itself.
    Done(T),
    /// By itself, after what was held was over.
    DoneInGrace(T),
    /// It was dropped, as it went on for longer than the grace.
    Aborted,
}

/// What a task is told of what is held for it.
#[derive(Clone, Debug)]
pub struct Leading {
    /// To go with all that is written.
    pub term: Term,
    /// As [`Held::fence`]: to go with what is written to the same tree.
    pub fence: Vec<Op>,
    /// Cancelled when the task is to end.
    pub over: CancellationToken,
    hold: Hold,
}

impl Leading {
    /// As [`Held::is_valid`], also while the task is told to end: to be asked right before what cannot be taken back. A process that stood
    /// still may come to that before it comes to cancel [`Leading::over`].
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.hold.is_valid()
    }
}

impl Held {
    /// Runs `task` here, until it ends. When this is over, or `stop` is cancelled, the task is told, and `grace` later it is dropped. Then
    /// gives it back.
    pub async fn run<T, F>(self, stop: &CancellationToken, grace: Duration, task: impl FnOnce(Leading) -> F) -> Ended<T>
    where
        F: Future<Output = T>,
    {
        let (over, hold) = (self.token(), self.hold.clone());
        let leading = Leading { term: self.term, fence: self.fence(), over: over.clone(), hold };
        let mut working = Box::pin(task(leading));
        let told = async {
            tokio::select! {
                biased;
                () = over.cancelled() => {}
                () = stop.cancelled() => over.cancel(),
            }
        };
        let ended = tokio::select! {
            biased;
            () = told => match self.hold.runtime.timeout(grace, &mut working).await {
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
