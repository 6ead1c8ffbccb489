//! Middleware for services that Reveille calls. It accepts only callbacks that Reveille signed, and makes each callback
//! take effect only once.
//!
//! [`verified`] is axum middleware that reads a callback's body, checks its signature according to Standard Webhooks
//! 1.0.0, and passes a [`Callback`] to the handler. [`once`] also begins a transaction in the service's own PostgreSQL
//! and inserts the callback's id. The handler makes its own writes in the same transaction. The middleware commits the
//! handler's writes and the id together, and responds only after the commit. A callback therefore takes effect only
//! once, even if it arrives twice because the response was lost.
//!
//! ```no_run
//! use axum::{Router, middleware, routing::post};
//! use deadpool_postgres::{Manager, Pool};
//! use reveille_receiver::{Callback, Failed, Once, Options, Transaction, Verifier, once};
//!
//! async fn remind(callback: Callback, transaction: Transaction) -> Result<(), Failed> {
//!     let order: i64 = callback.json()?;
//!     transaction.execute("insert into reminders (order_id) values ($1)", &[&order]).await?;
//!     Ok(())
//! }
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let manager = Manager::new("postgresql://shop@localhost/shop".parse()?, tokio_postgres::NoTls);
//! let pool = Pool::builder(manager).build()?;
//! let connection = pool.get().await?;
//! reveille_receiver::create_table(&connection).await?;
//! let verifier = Verifier::new(std::fs::read_to_string("data/signing.secret")?.parse()?, Options::default());
//! let once = Once::new(verifier, pool);
//! let routes = Router::new()
//!     .route("/remind", post(remind))
//!     .route_layer(middleware::from_fn_with_state(once, reveille_receiver::once));
//! axum::serve(tokio::net::TcpListener::bind("127.0.0.1:9000").await?, routes).await?;
//! # Ok(())
//! # }
//! ```
//!
//! With another framework, or with a transaction that the service begins itself, use [`Verifier::verify`] and
//! [`is_first`].
//!
//! This crate does not create schedules: the crate `client` creates them. This crate does not listen on sockets. A side
//! effect outside the handler's transaction, for example an email, may happen each time the callback arrives. For such
//! a side effect, insert a row in the transaction, and let another program read the row and perform the side effect.
//!
//! Invariants: a handler receives only bodies that a sender recently signed with one of the secrets. The middleware
//! sends a success response only after the commit. No secret appears in a `Debug` text or an error. The middleware
//! limits the size of a body and the time in which the body must arrive.

#![warn(missing_docs)]

mod clock;
mod failed;
#[cfg(feature = "postgres")]
mod handled;
mod middleware;
#[cfg(feature = "postgres")]
mod once;
mod secret;
mod verify;

pub use failed::Failed;
#[cfg(feature = "postgres")]
pub use handled::{TABLE, create_table, forget, is_first};
pub use middleware::verified;
#[cfg(feature = "postgres")]
pub use once::{Once, Transaction, once};
pub use secret::{Secret, SecretError};
pub use verify::{Callback, Options, Rejection, Verifier};
