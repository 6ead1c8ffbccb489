//! Where a server on this machine is found: `serve` leaves its address in its data folder while it runs, for the commands
//! that are clients of it.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The file is no secret; what lies beside it is.
pub(crate) fn path(data: &Path) -> PathBuf {
    data.join("server.url")
}

/// The address as a client on this machine needs it.
pub(crate) fn url_of(listens: SocketAddr, is_secured: bool) -> String {
    let ip = match listens.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let scheme = if is_secured { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, listens.port()))
}

/// The file, for as long as the server runs. One that a kill left is replaced by the next start.
pub(crate) struct Left(PathBuf);

impl Left {
    /// Replaces the file in one step, so that nobody reads a part of it.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub(crate) fn leave(data: &Path, listens: SocketAddr, is_secured: bool) -> io::Result<Self> {
        let path = path(data);
        let draft = path.with_extension("url.draft");
        fs::write(&draft, format!("{}\n", url_of(listens, is_secured)))?;
        fs::rename(&draft, &path)?;
        Ok(Left(path))
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        // Whoever removed it before did what was wanted.
        let _removed = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_listens_everywhere_is_found_on_this_machine() {
        let url = |listens: &str| url_of(listens.parse().unwrap(), false);
        assert_eq!(url("0.0.0.0:8080"), "http://127.0.0.1:8080");
        assert_eq!(url("[::]:8080"), "http://[::1]:8080");
        assert_eq!(url("10.0.0.1:80"), "http://10.0.0.1:80");
        assert_eq!(url_of("10.0.0.1:443".parse().unwrap(), true), "https://10.0.0.1:443");
    }
}
