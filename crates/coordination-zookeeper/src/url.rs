//! URL of a ZooKeeper ensemble.

use coordination::tree::NodePath;

/// URL `zookeeper://HOST:PORT,HOST:PORT/ROOT` with the servers of one ensemble and the root node. Clients see the root
/// node as `/`. If the URL contains no root node, clients see ZooKeeper's own root as `/`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZookeeperUrl {
    servers: String,
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
        let is_server = |server: &str| {
            let has_port =
                |(host, port): (&str, &str)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0);
            // A server without a port uses ZooKeeper's default port, 2181.
            let is_valid = server.rsplit_once(':').map_or(!server.is_empty(), has_port);
            is_valid && !server.contains(['@', ' '])
        };
        if rest.contains(['?', '#']) {
            return Err(invalid("the URL must not contain ? or #, because Reveille supports no options"));
        }
        if !servers.split(',').all(is_server) {
            return Err(invalid("each server must have the form HOST or HOST:PORT without credentials"));
        }
        let root = match root.strip_suffix('/').unwrap_or(root) {
            "" => None,
            root => Some(NodePath::new(root).map_err(|_| invalid("the part /ROOT is not a valid node path"))?),
        };
        Ok(ZookeeperUrl { servers: servers.to_owned(), root })
    }

    /// Returns the servers in the form that the client library expects.
    pub(crate) fn servers(&self) -> &str {
        &self.servers
    }

    pub(crate) fn root(&self) -> Option<&NodePath> {
        self.root.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zookeeper_url_parser_returns_the_servers_and_the_root_path() {
        for (text, servers, root) in [
            ("zookeeper://a", "a", None),
            ("zookeeper://a:2181/", "a:2181", None),
            ("zookeeper://a:2181,b:2182/x/y", "a:2181,b:2182", Some("/x/y")),
            ("zookeeper://127.0.0.1:1/x/", "127.0.0.1:1", Some("/x")),
        ] {
            let url = ZookeeperUrl::parse(text).unwrap();
            assert_eq!((url.servers(), url.root().map(NodePath::as_str)), (servers, root), "{text}");
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
            "zookeeper://a:2181/x?y=z",
            "zookeeper://a//x",
        ] {
            let error = ZookeeperUrl::parse(text).expect_err(text).to_string();
            assert!(error.contains("zookeeper://HOST:PORT"), "{error}");
        }
    }
}
