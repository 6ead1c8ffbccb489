//! Middleware that handles each callback once. It commits the handler's writes and the callback's id in one
//! transaction.
//!
//! The transaction has its own connection from `begin` to `commit`. If the handler fails or panics, or if the client
//! disconnects, the middleware ends the transaction with a rollback or closes the connection. PostgreSQL rolls back the
//! transaction in each case.
//!
//! docs/decisions/0122-discard-duplicates-in-the-receivers-transaction.md gives the reasons for the design.

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
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::middleware::missing;
use crate::{Verifier, clock, handled};

/// State of the middleware [`once`](once()). A clone is cheap.
#[derive(Clone)]
pub struct Once {
    verifier: Verifier,
    pool: Pool,
    wait_max: Duration,
}

impl Once {
    /// Creates the state of the middleware. The middleware takes one connection of `pool` for each callback in
    /// progress. The database must contain the table that [`create_table`](crate::create_table) creates.
    #[must_use]
    pub fn new(verifier: Verifier, pool: Pool) -> Self {
        Once { verifier, pool, wait_max: Duration::from_secs(10) }
    }

    /// Sets the longest time that a callback waits for a database connection and for the end of a concurrent duplicate.
    /// The default is 10 s, which is also Reveille's default timeout for a callback. After this time, the middleware
    /// responds with 503, and PostgreSQL stops waiting (`lock_timeout`). The handler's statements keep the `lock_timeout`
    /// of the connection.
    #[must_use]
    pub fn wait_max(self, wait_max: Duration) -> Self {
        Once { wait_max, ..self }
    }

    /// Begins a transaction and inserts the callback's id. Returns `None` if an earlier transaction committed this id.
    async fn begin(&self, id: &str) -> Result<Option<Open>, Failure> {
        let beginning = async {
            let open = Open(Some(self.pool.get().await?));
            // Without the lock timeout, PostgreSQL would wait for the concurrent duplicate even after the connection
            // closes. Each further attempt of the callback would then occupy another connection of the database.
            let wait_ms = self.wait_max.as_millis().clamp(1, LOCK_TIMEOUT_MAX_MS);
            let begin = format!("begin; show lock_timeout; set local lock_timeout = {wait_ms}");
            let lock_timeout = first_value(&open.client().simple_query(&begin).await?);
            match handled::insert(open.client(), id).await {
                Ok(true) => {}
                Ok(false) => return open.end("rollback").await.map(|()| None),
                Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                    return Err(Failure::TimedOut(self.wait_max));
                }
                Err(error) => return Err(error.into()),
            }
            open.client().batch_execute(&format!("set local lock_timeout = '{lock_timeout}'")).await?;
            Ok(Some(open))
        };
        clock::timeout(self.wait_max, beginning).await.unwrap_or(Err(Failure::TimedOut(self.wait_max)))
    }
}

/// Largest value of the setting `lock_timeout`.
const LOCK_TIMEOUT_MAX_MS: u128 = 2_147_483_647;

/// Returns the first value in the first row, or an empty text if there is no row.
fn first_value(messages: &[SimpleQueryMessage]) -> String {
    let value = messages.iter().find_map(|message| {
        let SimpleQueryMessage::Row(row) = message else { return None };
        row.get(0)
    });
    value.unwrap_or_default().to_owned()
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once")
            .field("verifier", &self.verifier)
            .field("wait_max", &self.wait_max)
            .finish_non_exhaustive()
    }
}

/// Middleware that accepts each signed callback once. Install it with `axum::middleware::from_fn_with_state(once,
/// reveille_receiver::once)`. The handler may take a [`Callback`](crate::Callback) and a [`Transaction`].
///
/// If the handler responds with 2xx, the middleware commits the transaction before it sends the response. After any
/// other response, a panic or a disconnect, PostgreSQL rolls the transaction back. The middleware then handles the
/// callback's next attempt like the first attempt. If an earlier transaction has committed the callback's id, the
/// middleware responds with 200 and does not call the handler. If two duplicates arrive at the same time, one of them
/// waits until the transaction of the other one ends.
///
/// The middleware rejects requests without a valid signature in the same way as [`verified`](crate::verified). If the
/// database fails, the middleware responds with 503.
pub async fn once(State(once): State<Once>, request: Request, next: Next) -> Response {
    let (callback, mut request) = match once.verifier.checked(request).await {
        Ok(checked) => checked,
        Err(rejected) => return rejected.into_response(),
    };
    let open = match once.begin(&callback.id).await {
        Ok(Some(open)) => open,
        Ok(None) => {
            tracing::debug!(id = callback.id, "duplicate callback dropped");
            return StatusCode::OK.into_response();
        }
        Err(failure) => return failure.into_response(),
    };
    let slot = Slot::new(open);
    request.extensions_mut().insert(slot.clone());
    let response = next.run(request).await;
    match finish(slot.take(), response.status().is_success()).await {
        Ok(()) => response,
        Err(failure) => failure.into_response(),
    }
}

async fn finish(open: Option<Open>, is_success: bool) -> Result<(), Failure> {
    match (open, is_success) {
        // If a statement of the transaction has failed, PostgreSQL reports success for `commit` but rolls back. The
        // query `select 1` before the commit fails in this case, so the middleware detects the failure.
        (Some(open), true) => open.end("select 1; commit").await,
        (None, true) => Err(Failure::TransactionInUse),
        (Some(open), false) => {
            // If the statement `rollback` fails, `end` closes the connection, and PostgreSQL then rolls back the
            // transaction.
            let _rolled_back = open.end("rollback").await;
            Ok(())
        }
        (None, false) => Ok(()),
    }
}

/// Reason why the middleware did not process a callback.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot get a connection to the receiver's database")]
    Pool(#[from] PoolError),
    #[error("a statement failed in the receiver's database")]
    Database(#[from] tokio_postgres::Error),
    #[error("timed out after {0:?} while waiting for a database connection or for the end of a concurrent duplicate")]
    TimedOut(Duration),
    #[error(
        "the handler returned, but its transaction is still in use; drop the transaction before the handler returns"
    )]
    TransactionInUse,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let error: &(dyn std::error::Error + 'static) = &self;
        tracing::warn!(error, "callback not processed; Reveille will send the callback again");
        let status = match &self {
            Failure::Pool(_) | Failure::Database(_) | Failure::TimedOut(_) => StatusCode::SERVICE_UNAVAILABLE,
            Failure::TransactionInUse => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, "the callback was not processed; see the receiver's log").into_response()
    }
}

/// Connection with an open transaction. The drop of this value closes the connection.
struct Open(Option<Object>);

impl Open {
    fn client(&self) -> &Client {
        self.0.as_ref().expect("the connection is present until the transaction ends")
    }

    /// Ends the transaction with `statements`, and returns the connection to its pool.
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

/// Slot that contains the transaction of a request while no handler uses the transaction.
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

/// Transaction for the effects of a callback. It dereferences to a [`Client`] of `tokio_postgres`, on which the
/// middleware has begun a transaction. If a route has the middleware [`once`](once()), its handler can take this type
/// as an argument. The middleware ends the transaction after the handler returns, so handlers must not begin, commit or
/// roll back a transaction.
pub struct Transaction {
    /// Open transaction; `None` only after the drop of this value.
    open: Option<Open>,
    slot: Slot,
}

impl Deref for Transaction {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.open.as_ref().expect("the transaction is present until this value is dropped").client()
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

/// Extracts the transaction for a handler. The handler's route must have the middleware [`once`](once()). Without the
/// middleware, the route responds with 500.
impl<S: Sync> FromRequestParts<S> for Transaction {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let slot = parts.extensions.get::<Slot>().cloned();
        let slot = slot.ok_or_else(|| {
            missing("this route's handler takes a transaction; add the middleware `once` to the route")
        })?;
        let open = slot.take().ok_or_else(|| {
            missing("the request's transaction is already in use; take only one `Transaction` in the handler")
        })?;
        Ok(Transaction { open: Some(open), slot })
    }
}
