//! Middleware for services that Reveille calls. It accepts only callbacks that Reveille signed, and handles each
//! one once.
//!
//! [`verified`] is axum middleware that reads a callback's body, checks its signature according to Standard
//! Webhooks 1.0.0, and passes a [`Callback`] to the handler. [`once`] also begins a transaction in the service's
//! own PostgreSQL and inserts the callback's id. The handler writes in the same transaction. The middleware
//! commits its writes and the id together, and responds only afterwards. A callback that arrives twice, because
//! its response was lost, therefore takes effect once.
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
//! This crate does not create schedules (the crate `client` does), and it does not listen on sockets. A side
//! effect outside the handler's transaction, such as an email, happens each time the callback arrives. Record such
//! work in the transaction, and perform it from the record.
//!
//! Invariants: A handler receives only bodies that were recently signed with one of the secrets. A success
//! response leaves only after the commit. No secret appears in a `Debug` text or an error. Bodies are limited in
//! size and in time.

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
