//! URL of a ZooKeeper ensemble.

use coordination::tree::NodePath;

use crate::client::Server;

/// Port of a server whose URL names none.
const DEFAULT_PORT: u16 = 2181;

/// URL `zookeeper://HOST:PORT,HOST:PORT/ROOT` with the servers of one ensemble and the root node. Clients see the root
/// node as `/`. If the URL contains no root node, clients see ZooKeeper's own root as `/`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZookeeperUrl {
    servers: Vec<Server>,
    root: Option<NodePath>,
}

/// Reason why a text is not a ZooKeeper URL.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid ZooKeeper URL: {reason}; use zookeeper://HOST:PORT,HOST:PORT/ROOT")]
pub struct ZookeeperUrlError {
    reason: &'static str,
}

impl ZookeeperUrl {
    /// Lower-case text at the start of every ZooKeeper URL.
    pub const SCHEME: &str = "zookeeper://";

    /// Parses a URL.
    ///
    /// # Errors
    /// Returns an error if the text is not a valid ZooKeeper URL.
    pub fn parse(url: &str) -> Result<Self, ZookeeperUrlError> {
        let invalid = |reason| ZookeeperUrlError { reason };
        let rest = url.strip_prefix(Self::SCHEME).ok_or_else(|| invalid("the URL does not start with zookeeper://"))?;
        let (servers, root) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if rest.contains(['?', '#']) {
            return Err(invalid("the URL must not contain ? or #, because Reveille supports no options"));
        }
        let servers: Option<Vec<Server>> = servers.split(',').map(server_of).collect();
        let servers =
            servers.ok_or_else(|| invalid("each server must have the form HOST or HOST:PORT without credentials"))?;
        let root = match root.strip_suffix('/').unwrap_or(root) {
            "" => None,
            root => Some(NodePath::new(root).map_err(|_| invalid("the part /ROOT is not a valid node path"))?),
        };
        Ok(ZookeeperUrl { servers, root })
    }

    pub(crate) fn servers(&self) -> &[Server] {
        &self.servers
    }

    pub(crate) fn root(&self) -> Option<&NodePath> {
        self.root.as_ref()
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
mod tests {
    use super::*;

    #[test]
    fn zookeeper_url_parser_returns_the_servers_and_the_root_path() {
        for (text, servers, root) in [
            ("zookeeper://a", &[("a", 2181)][..], None),
            ("zookeeper://a:2183/", &[("a", 2183)], None),
            ("zookeeper://a:2181,b:2182/x/y", &[("a", 2181), ("b", 2182)], Some("/x/y")),
            ("zookeeper://127.0.0.1:1/x/", &[("127.0.0.1", 1)], Some("/x")),
            ("zookeeper://[::1]:7,[::2]/x", &[("::1", 7), ("::2", 2181)], Some("/x")),
        ] {
            let url = ZookeeperUrl::parse(text).unwrap();
            let found: Vec<(&str, u16)> =
                url.servers().iter().map(|server| (server.host.as_str(), server.port)).collect();
            assert_eq!((&found[..], url.root().map(NodePath::as_str)), (servers, root), "{text}");
        }
    }

    #[test]
    fn error_for_an_invalid_url_shows_the_expected_form() {
        for text in [
            "a:2181",
            "http://a",
            "zookeeper://",
            "zookeeper:///x",
            "zookeeper://a,/x",
            "zookeeper://u:p@a",
            "zookeeper://a:99999",
            "zookeeper://a:port/x",
            "zookeeper://::1/x",
            "zookeeper://[::1/x",
            "zookeeper://[::1]7/x",
            "zookeeper://a:2181/x?y=z",
            "zookeeper://a//x",
        ] {
            let error = ZookeeperUrl::parse(text).expect_err(text).to_string();
            assert!(error.contains("zookeeper://HOST:PORT"), "{error}");
        }
    }
}
