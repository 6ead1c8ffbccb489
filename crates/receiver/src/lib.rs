//! For services that Reveille calls: it lets through what Reveille signed, and once.
//!
//! [`verified`] is axum middleware that reads a callback's body, checks its signature after Standard Webhooks 1.0.0 and hands the
//! handler a [`Callback`]. [`once`] does that, too, and begins a transaction of the service's own PostgreSQL that notes the
//! callback's id: the handler writes in it, its writes and the note are committed together, and only then the answer
//! leaves. So a callback that comes twice, as one may whose answer was lost, has its effect once.
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
//! With another framework, or a transaction that is begun elsewhere: [`Verifier::verify`] and [`is_first`].
//!
//! It makes no schedules (the crate `client` does), and listens on nothing by itself. What a handler does outside of its
//! transaction (a mail that it sends, say) is done as often as the callback comes: write it down in the transaction,
//! and send what is written down.
//!
//! Always true here: no handler sees a body that was not signed with one of the secrets, lately; no answer that says that it
//! was done leaves before the commit; no secret is in a `Debug` text or an error; bodies have a limit in bytes and in time.

#![warn(missing_docs)]

mod clock;
mod failed;
#[cfg(feature = "postgres")]
mod marks;
mod middleware;
#[cfg(feature = "postgres")]
mod once;
mod secret;
mod verify;

pub use failed::Failed;
#[cfg(feature = "postgres")]
pub use marks::{TABLE, create_table, forget, is_first};
pub use middleware::verified;
#[cfg(feature = "postgres")]
pub use once::{Once, Transaction, once};
pub use secret::{Secret, SecretError};
pub use verify::{Callback, Options, Refusal, Verifier};
