//! URL of a ZooKeeper ensemble.

use std::fmt;
use std::path::PathBuf;

use coordination::tree::{NodePath, TreeError};
use percent_encoding::percent_decode_str;
use rustls::pki_types::ServerName;

use crate::client::{FileError, Identity, Server, Tls, User};

/// Port of a server whose URL names none. Servers have no default port for TLS.
const DEFAULT_PORT: u16 = 2181;

/// URL `zookeeper://HOST:PORT,HOST:PORT/ROOT` with the servers of one ensemble and the root node. Clients see the root
/// node as `/`. If the URL contains no root node, clients see ZooKeeper's own root as `/`.
///
/// With `zookeeper+tls://`, the client encrypts its connections and checks that the certificate of each server is valid
/// for its host name in the URL. As in PostgreSQL's URLs, `?sslrootcert=FILE` names a PEM file with the trusted root
/// certificates. Without it, and with the value `system`, the client trusts the root certificates that Mozilla
/// publishes. `sslcert=FILE` and `sslkey=FILE` name the certificate and the private key of this client. The client reads
/// the files again for each connection.
///
/// With `USER@` or `USER:PASSWORD@` before the servers, each connection authenticates this user with SASL (DIGEST-MD5)
/// before it uses the session. The debug text contains no password.
#[derive(Clone, PartialEq, Eq)]
pub struct ZookeeperUrl {
    servers: Vec<Server>,
    root: Option<NodePath>,
    tls: Option<Tls>,
    user: Option<String>,
    password: Option<String>,
}

/// Reason why a URL cannot be used. The error text contains no part of a password.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ZookeeperUrlError {
    /// The text is not a ZooKeeper URL.
    #[error("invalid ZooKeeper URL: {0}; use zookeeper://HOST:PORT,HOST:PORT/ROOT, or zookeeper+tls:// for TLS")]
    Form(&'static str),
    /// A file that the URL names cannot be used.
    #[error("cannot use {path}, which the parameter {parameter} of the ZooKeeper URL names: {reason}")]
    File {
        /// Parameter of the URL that names the file.
        parameter: &'static str,
        /// Path of the file.
        path: String,
        /// Reason why the file cannot be used, with the next step.
        reason: String,
    },
}

impl From<FileError> for ZookeeperUrlError {
    fn from(FileError { parameter, path, reason }: FileError) -> Self {
        ZookeeperUrlError::File { parameter, path, reason }
    }
}

impl ZookeeperUrl {
    /// Lower-case text at the start of a URL without TLS.
    pub const SCHEME: &str = "zookeeper://";

    /// Lower-case text at the start of a URL with TLS.
    pub const TLS_SCHEME: &str = "zookeeper+tls://";

    /// Parses a URL, and reads the files that it names to check them.
    ///
    /// # Errors
    /// Returns an error if the text is not a valid ZooKeeper URL, or if a file that it names cannot be used.
    pub fn parse(url: &str) -> Result<Self, ZookeeperUrlError> {
        let (rest, has_tls) = match (url.strip_prefix(Self::SCHEME), url.strip_prefix(Self::TLS_SCHEME)) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => {
                return Err(invalid("the URL does not start with zookeeper:// or zookeeper+tls://"));
            }
        };
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        if rest.contains('#') {
            return Err(invalid("the URL must not contain #; write # in a password as %23"));
        }
        let (authority, root) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (user, servers) = match authority.rsplit_once('@') {
            Some((user, servers)) => (Some(user), servers),
            None => (None, authority),
        };
        let servers: Option<Vec<Server>> = servers.split(',').map(server_of).collect();
        let servers = servers.ok_or_else(|| {
            invalid(
                "each server must have the form HOST or HOST:PORT; write @, /, ? and # in a password as %40, %2F, \
                     %3F and %23",
            )
        })?;
        let root = match root.strip_suffix('/').unwrap_or(root) {
            "" => None,
            // A password with a slash would otherwise become a part of the root path.
            root if user.is_none() && root.contains('@') => {
                return Err(invalid(
                    "the root path contains @ although the URL has no user; write / in a password as %2F",
                ));
            }
            root => Some(NodePath::new(root).map_err(|_| invalid("the part /ROOT is not a valid node path"))?),
        };
        let tls = tls_of(query)?;
        let tls = match (has_tls, tls) {
            (false, None) => None,
            (false, Some(_)) => {
                return Err(invalid("the URL has parameters for TLS, so it must start with zookeeper+tls://"));
            }
            (true, tls) => Some(tls.unwrap_or_default()),
        };
        if let Some(tls) = &tls {
            tls.config()?;
            let is_name = |server: &Server| ServerName::try_from(server.host.as_str()).is_ok();
            if !servers.iter().all(is_name) {
                return Err(invalid("TLS requires hosts that are DNS names or IP addresses"));
            }
        }
        let (user, password) = user.map(user_of).transpose()?.unzip();
        Ok(ZookeeperUrl { servers, root, tls, user, password: password.flatten() })
    }

    /// Returns true if the URL contains a password of its user.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.password.is_some()
    }

    /// Replaces the password of the URL's user. Does nothing if `password` is `None`, or if the URL has no user.
    #[must_use]
    pub fn with_password(self, password: Option<String>) -> Self {
        ZookeeperUrl { password: password.or(self.password), ..self }
    }

    pub(crate) fn servers(&self) -> &[Server] {
        &self.servers
    }

    pub(crate) fn root(&self) -> Option<&NodePath> {
        self.root.as_ref()
    }

    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Returns the user that the connections authenticate.
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if the user has no password.
    pub(crate) fn user(&self) -> Result<Option<User>, TreeError> {
        match (&self.user, &self.password) {
            (None, _) => Ok(None),
            (Some(name), Some(password)) => Ok(Some(User { name: name.clone(), password: password.clone() })),
            (Some(name), None) => Err(TreeError::Invalid(format!(
                "the user {name} in the ZooKeeper URL has no password; give a file with the password \
                 (--password-file FILE), or write USER:PASSWORD in the URL"
            ))),
        }
    }

    /// Returns true if the server knows the client by a user or a certificate, and not only by the credentials of a
    /// session.
    pub(crate) fn identifies_client(&self) -> bool {
        self.user.is_some() || self.tls.as_ref().is_some_and(|tls| tls.identity.is_some())
    }
}

impl fmt::Debug for ZookeeperUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ZookeeperUrl { servers, root, tls, user, password: _ } = self;
        let mut debug = f.debug_struct("ZookeeperUrl");
        debug.field("servers", servers).field("root", root).field("tls", tls).field("user", user);
        debug.finish_non_exhaustive()
    }
}

fn invalid(reason: &'static str) -> ZookeeperUrlError {
    ZookeeperUrlError::Form(reason)
}

fn decoded(text: &str) -> Result<String, ZookeeperUrlError> {
    let decoded = percent_decode_str(text).decode_utf8();
    Ok(decoded.map_err(|_| invalid("a decoded part of the URL is not UTF-8"))?.into_owned())
}

/// Parses `USER` or `USER:PASSWORD`.
fn user_of(text: &str) -> Result<(String, Option<String>), ZookeeperUrlError> {
    let (name, password) = text.split_once(':').map_or((text, None), |(name, password)| (name, Some(password)));
    if name.is_empty() {
        return Err(invalid("the user before @ is empty"));
    }
    Ok((decoded(name)?, password.map(decoded).transpose()?))
}

/// Parses the parameters of the URL. Returns `None` if there are none.
fn tls_of(query: Option<&str>) -> Result<Option<Tls>, ZookeeperUrlError> {
    let Some(query) = query else { return Ok(None) };
    let (mut roots, mut certificate, mut key) = (None, None, None);
    for parameter in query.split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let file = match name {
            "sslrootcert" => &mut roots,
            "sslcert" => &mut certificate,
            "sslkey" => &mut key,
            _ => return Err(invalid("the parameters of the URL are sslrootcert, sslcert and sslkey")),
        };
        let value = decoded(value)?;
        if value.is_empty() {
            return Err(invalid(
                "a parameter of the URL has no value; use sslrootcert=FILE, sslcert=FILE and sslkey=FILE",
            ));
        }
        *file = Some(PathBuf::from(value));
    }
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
        (None, None) => None,
        (Some(_), None) => return Err(invalid("sslcert=FILE requires sslkey=FILE")),
        (None, Some(_)) => return Err(invalid("sslkey=FILE requires sslcert=FILE")),
    };
    Ok(Some(Tls { roots: roots.filter(|path| path.as_os_str() != "system"), identity }))
}

/// Writes the addresses of the servers, such as `a:2181,b:2181`.
impl fmt::Display for ZookeeperUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, server) in self.servers.iter().enumerate() {
            write!(f, "{}{server}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Parses the address of a server. The address of IPv6 is in brackets.
fn server_of(text: &str) -> Option<Server> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':')?)),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Some(DEFAULT_PORT), |port| port.parse().ok().filter(|port| *port > 0))?;
    let is_host = !host.is_empty() && !host.contains(['@', ' ', '[']);
    is_host.then(|| Server { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests;
