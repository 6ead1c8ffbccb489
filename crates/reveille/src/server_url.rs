//! File with the URL of a server on this machine. The file is in the data folder of `serve` while `serve` runs.
//! Commands that are clients of the server read this file.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Returns the path of the file with the URL.
pub(crate) fn path(data: &Path) -> PathBuf {
    data.join("server.url")
}

/// Returns the URL at which a client on this machine reaches a server that listens on `listens`.
pub(crate) fn url_of(listens: SocketAddr, is_secured: bool) -> String {
    let ip = match listens.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let scheme = if is_secured { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, listens.port()))
}

/// Guard whose drop removes the file with the URL, unless another server has replaced the file. If a signal kills the
/// process, the file remains until the next start of the server replaces it.
pub(crate) struct UrlFile {
    path: PathBuf,
    text: String,
}

impl UrlFile {
    /// Replaces the file in one atomic step, so that no reader sees only a part of the content.
    ///
    /// # Errors
    /// Returns an error if the process cannot write to the data folder.
    pub(crate) fn write(data: &Path, listens: SocketAddr, is_secured: bool) -> io::Result<Self> {
        let path = path(data);
        let draft = path.with_extension("url.draft");
        let text = format!("{}\n", url_of(listens, is_secured));
        fs::write(&draft, &text)?;
        fs::rename(&draft, &path)?;
        Ok(UrlFile { path, text })
    }
}

impl Drop for UrlFile {
    fn drop(&mut self) {
        if fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            // The drop ignores the error, because another process may already have removed the file.
            let _removed = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_url_uses_loopback_if_the_server_listens_on_all_addresses() {
        let url = |listens: &str| url_of(listens.parse().unwrap(), false);
        assert_eq!(url("0.0.0.0:8080"), "http://127.0.0.1:8080");
        assert_eq!(url("[::]:8080"), "http://[::1]:8080");
        assert_eq!(url("10.0.0.1:80"), "http://10.0.0.1:80");
        assert_eq!(url_of("10.0.0.1:443".parse().unwrap(), true), "https://10.0.0.1:443");
    }
}
