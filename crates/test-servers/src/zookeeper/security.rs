//! TLS and authentication of a ZooKeeper server for tests.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::certificate::Authority;

/// Users of SASL and their passwords. The passwords test the encodings of RFC 2831: ASCII, ISO 8859-1 and UTF-8.
pub const USERS: [(&str, &str); 3] = [("ann", "correct horse, battery"), ("bea", "pässwörd"), ("eve", "pass\u{20ac}")];

/// Security settings of a server. The server has a second port for TLS with a certificate for `localhost` (not
/// 127.0.0.1), and it knows the [`USERS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Security {
    /// True if a client must have a certificate, as by default. Otherwise the server only checks the certificate of a
    /// client that has one.
    pub requires_certificate: bool,
    /// True if each client must authenticate with SASL, on both ports.
    pub requires_user: bool,
    /// True if the server's certificate has expired.
    pub has_expired: bool,
}

impl Security {
    /// Writes the certificates and the file with the users into `folder`: `root.crt` is the certificate of the
    /// authority, and `client.crt` and `client.key` are for a client. Returns lines for the server's configuration.
    pub(super) fn prepare(self, folder: &Path, port: u16) -> anyhow::Result<String> {
        let authority = Authority::create(folder)?;
        authority.issue(folder, "client")?;
        if self.has_expired {
            authority.issue_expired(folder, "server")?;
        } else {
            authority.issue(folder, "server")?;
        }
        let keys = [fs::read(folder.join("server.key"))?, fs::read(folder.join("server.crt"))?].concat();
        fs::write(folder.join("server.pem"), keys)?;
        let users = USERS.map(|(name, password)| format!("user_{name}=\"{password}\"")).join("\n");
        let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
        fs::write(folder.join("jaas.conf"), format!("Server {{ {module} required\n{users}; }};\n"))?;
        let mut lines = format!(
            "secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\n\
             serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
             authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n\
             sessionRequireClientSASLAuth={}\nssl.clientAuth={}\n",
            self.requires_user,
            if self.requires_certificate { "need" } else { "want" },
        );
        for (store, file) in [("keyStore", "server.pem"), ("trustStore", "root.crt")] {
            // Without the type, ZooKeeper would read `root.crt` as a Java keystore.
            writeln!(lines, "ssl.{store}.location={}\nssl.{store}.type=PEM", folder.join(file).display())?;
        }
        Ok(lines)
    }
}
