//! Choice of free ports for test servers.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::Mutex;

use anyhow::{Context, bail};

/// Ports that this process has chosen. A server may listen on its port only later, so the port is not chosen again.
static CHOSEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Returns a free port below the range that this machine uses for outgoing connections. No outgoing connection can
/// therefore take the port while its server restarts. Each call in this process returns another port.
///
/// # Errors
/// Returns an error if no port is free.
pub fn free_port() -> anyhow::Result<u16> {
    for _ in 0..100 {
        let random = getrandom::u32().context("the operating system returned no random number")? % 12_000;
        let port = 20_000 + u16::try_from(random).expect("a remainder below 12,000 fits into 16 bits");
        let is_free = TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free && CHOSEN.lock().expect("no thread panics while it holds this lock").insert(port) {
            return Ok(port);
        }
    }
    bail!("100 attempts found no free port between 20,000 and 31,999; run the tests again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_not_chosen_twice() {
        let ports: Vec<u16> = (0..200).map(|_| free_port().expect("a port is free")).collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), ports.len());
    }
}
