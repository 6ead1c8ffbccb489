//! Parts that the commands of the binary and its benchmarks share: lines on standard output, URLs that hide their passwords, HTTP/1.1
//! with little work per message, and a small receiver of callbacks.
//!
//! The HTTP of the API and of callbacks is in `server` and `callback`, not here.

pub mod console;
pub mod http1;
pub mod receiver;
mod url;

pub use url::Url;
