//! A callback's effect, once: the handler's writes and the note that it was called are one transaction.
//!
//! The transaction is of a connection's own, from `begin` to `commit`. Whatever ends otherwise (a refusal, a panic, a client that
//! went away) closes the connection, which is what makes PostgreSQL forget all of it.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use deadpool_postgres::{Object, Pool, PoolError};
use http::StatusCode;
use http::request::Parts;
use tokio_postgres::Client;

use crate::middleware::missing;
use crate::{Verifier, clock, marks};

/// What [`once`](once()) needs. Cheap to clone.
#[derive(Clone)]
pub struct Once {
    verifier: Verifier,
    pool: Pool,
    wait_max: Duration,
}

impl Once {
    /// With connections of `pool`, one for each callback that is being handled. Its database has the table of
    /// [`create_table`](crate::create_table).
    #[must_use]
    pub fn new(verifier: Verifier, pool: Pool) -> Self {
        Once { verifier, pool, wait_max: Duration::from_secs(10) }
    }

    /// How long a callback waits for a connection, and for the end of a double that is being handled. Default 10 s, which is
    /// also how long Reveille waits for an answer if the schedule says nothing else. After it, the answer is 503.
    #[must_use]
    pub fn wait_max(self, wait_max: Duration) -> Self {
        Once { wait_max, ..self }
    }

    /// A transaction in which this callback is noted; `None` if it was before.
    async fn begin(&self, id: &str) -> Result<Option<Open>, Failure> {
        let beginning = async {
            let open = Open(Some(self.pool.get().await?));
            open.client().batch_execute("begin").await?;
            match marks::insert(open.client(), id).await? {
                true => Ok(Some(open)),
                false => open.end("rollback").await.map(|()| None),
            }
        };
        clock::timeout(self.wait_max, beginning).await.unwrap_or(Err(Failure::Waited(self.wait_max)))
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once")
            .field("verifier", &self.verifier)
            .field("wait_max", &self.wait_max)
            .finish_non_exhaustive()
    }
}

/// Lets through what is signed, and once, with `axum::middleware::from_fn_with_state(once, reveille_receiver::once)`.
/// The handler may take a [`Callback`](crate::Callback) and a [`Transaction`].
///
/// If the handler answers with 2xx, its transaction is committed, and then the answer leaves. With any other answer, and if it
/// panics or its caller goes away, nothing of it remains, and the callback's next attempt is handled like a first one. A callback
/// whose transaction was committed before is answered with 200, and no handler hears of it. Of two at the same time one waits.
///
/// What is not signed is answered as by [`verified`](crate::verified); what the database does not let be done, with 503.
pub async fn once(State(once): State<Once>, request: Request, next: Next) -> Response {
    let (callback, mut request) = match once.verifier.checked(request).await {
        Ok(checked) => checked,
        Err(refused) => return refused.into_response(),
    };
    let open = match once.begin(&callback.id).await {
        Ok(Some(open)) => open,
        Ok(None) => {
            tracing::debug!(id = callback.id, "a double is dropped");
            return StatusCode::OK.into_response();
        }
        Err(failure) => return failure.into_response(),
    };
    let slot = Slot::new(open);
    request.extensions_mut().insert(slot.clone());
    let response = next.run(request).await;
    match settle(slot.take(), response.status().is_success()).await {
        Ok(()) => response,
        Err(failure) => failure.into_response(),
    }
}

async fn settle(open: Option<Open>, is_success: bool) -> Result<(), Failure> {
    match (open, is_success) {
        // PostgreSQL answers a commit after a failed statement as if nothing were wrong, and rolls back. The query before it
        // fails then, and the commit is not looked at.
        (Some(open), true) => open.end("select 1; commit").await,
        (None, true) => Err(Failure::Kept),
        (Some(open), false) => {
            // If this fails, the connection is closed, with the same effect.
            let _rolled_back = open.end("rollback").await;
            Ok(())
        }
        (None, false) => Ok(()),
    }
}

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("no connection to the receiver's database")]
    Pool(#[from] PoolError),
    #[error("the receiver's database refuses")]
    Database(#[from] tokio_postgres::Error),
    #[error("no connection, or no end of a double that is being handled, within {0:?}")]
    Waited(Duration),
    #[error("the handler answered before it was done: something still holds its transaction")]
    Kept,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let error: &(dyn std::error::Error + 'static) = &self;
        tracing::warn!(error, "a callback has no effect; it will come again");
        let status = match &self {
            Failure::Pool(_) | Failure::Database(_) | Failure::Waited(_) => StatusCode::SERVICE_UNAVAILABLE,
            Failure::Kept => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, "nothing was done; the receiver's log says why").into_response()
    }
}

/// A connection with a transaction. Dropped, it is closed.
struct Open(Option<Object>);

impl Open {
    fn client(&self) -> &Client {
        self.0.as_ref().expect("it is there until the transaction has ended")
    }

    /// Ends the transaction, and gives the connection back to its pool.
    async fn end(mut self, statements: &str) -> Result<(), Failure> {
        self.client().batch_execute(statements).await?;
        drop(self.0.take());
        Ok(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            drop(Object::take(object));
        }
    }
}

/// Where a request's transaction lies while no handler holds it.
#[derive(Clone)]
struct Slot(Arc<Mutex<Option<Open>>>);

impl Slot {
    fn new(open: Open) -> Self {
        Slot(Arc::new(Mutex::new(Some(open))))
    }

    fn take(&self) -> Option<Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, open: Open) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(open);
    }
}

/// The transaction that a callback's effect belongs into: a [`Client`] of `tokio_postgres` between `begin` and `commit`. Take it
/// in a handler behind [`once`](once()); it ends when that has answered, so do not begin, commit or roll back here.
pub struct Transaction {
    /// There until it is dropped.
    open: Option<Open>,
    slot: Slot,
}

impl Deref for Transaction {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.open.as_ref().expect("it is there until it is dropped").client()
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            self.slot.put(open);
        }
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transaction")
    }
}

/// In handlers behind [`once`](once()), one of it; elsewhere it is answered with 500.
impl<S: Sync> FromRequestParts<S> for Transaction {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let slot = parts.extensions.get::<Slot>().cloned();
        let slot = slot.ok_or_else(|| missing("this route takes a transaction, and has no middleware `once`"))?;
        let open = slot.take().ok_or_else(|| missing("this route takes its transaction twice"))?;
        Ok(Transaction { open: Some(open), slot })
    }
}
