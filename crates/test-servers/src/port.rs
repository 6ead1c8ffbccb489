//! Ports for servers.

use std::net::TcpListener;

use anyhow::{Context, bail};

/// Below the ports that this machine gives to connections, so that one stopped for a while gets its own again.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    for _ in 0..100 {
        let random = getrandom::u32().context("no randomness")? % 12_000;
        let port = 20_000 + u16::try_from(random).expect("it is below 12,000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port from 20,000 to 32,000 is free")
}
