//! Prints each callback whose signature is valid.
//!
//! ```sh
//! REVEILLE_SIGNING_SECRET=$(cat data/signing.secret) cargo run --example receive
//! ```

#![expect(clippy::print_stdout, reason = "the example prints each callback")]
#![expect(clippy::disallowed_methods, reason = "the example reads its settings from environment variables")]

// [example]
use std::error::Error;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::post;
use reveille_receiver::{Callback, Options, Verifier, verified};

async fn receive(callback: Callback) {
    println!("{}: {}", callback.id, String::from_utf8_lossy(&callback.body));
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let secret = std::env::var("REVEILLE_SIGNING_SECRET")?.parse()?;
    let verifier = Verifier::new(secret, Options::default());
    let routes = Router::new().route("/", post(receive)).route_layer(from_fn_with_state(verifier, verified));
    axum::serve(tokio::net::TcpListener::bind("127.0.0.1:9000").await?, routes).await?;
    Ok(())
}
// [end]
