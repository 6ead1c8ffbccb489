//! Prints the address of a PostgreSQL server without its password.

#![expect(clippy::print_stdout, reason = "the example prints the server's address")]

// [example]
use reveille_postgres_client::{Options, Server, UrlError};

fn main() -> Result<(), UrlError> {
    let server = Server::new("postgres://shop:hunter2@db.example:5432/shop?sslmode=require", Options::default())?;
    println!("{server}");
    Ok(())
}
// [end]
