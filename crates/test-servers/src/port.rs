//! Choice of free ports for test servers.

use std::net::TcpListener;

use anyhow::{Context, bail};

/// Returns a free port below the range that this machine uses for outgoing connections. No outgoing connection can
/// therefore take the port while its server restarts.
///
/// # Errors
/// Returns an error if no port is free.
pub fn free_port() -> anyhow::Result<u16> {
    for _ in 0..100 {
        let random = getrandom::u32().context("the operating system returned no random number")? % 12_000;
        let port = 20_000 + u16::try_from(random).expect("a remainder below 12,000 fits into 16 bits");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("100 attempts found no free port between 20,000 and 31,999; run the tests again")
}
