//! Free ports for servers.

use std::net::TcpListener;

use anyhow::{Context, bail};

/// Returns a free port below the range that this machine gives to outgoing connections, so that a server that restarts
/// gets its port again.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    for _ in 0..100 {
        let random = getrandom::u32().context("the system has no random numbers")? % 12_000;
        let port = 20_000 + u16::try_from(random).expect("the remainder is below 12,000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port from 20,000 to 32,000 is free")
}
