//! Connections to PostgreSQL: URLs, TLS, timeouts and reconnecting; and the migrations of a schema. The statements
//! are those of the engines.
//!
//! [`Server`] is where to connect, and how; [`Link`] is one connection to it that is made again whenever it ends. An
//! engine has as many links as it wants to have statements under way on.
//!
//! Always true here: nothing waits without a limit; no error, log line or `Debug` shows a password; what failed for want
//! of a connection says so ([`Failure::is_retryable`]).

mod failure;
mod link;
mod schema;
mod server;
mod tls;
mod url_error;

pub use failure::Failure;
pub use link::{Link, Session};
pub use schema::Schema;
pub use server::{Messages, Options, Server};
pub use tokio_postgres;
pub use url_error::UrlError;
