//! Where a ZooKeeper is.

use coordination::tree::NodePath;

/// `zookeeper://HOST:PORT,HOST:PORT/ROOT`: the servers of one ensemble, and the node that is `/` to who opens it; without one it is
/// ZooKeeper's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZookeeperUrl {
    servers: String,
    root: Option<NodePath>,
}

/// Why a text is no URL of a ZooKeeper.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}: a ZooKeeper is told as zookeeper://HOST:PORT,HOST:PORT/ROOT")]
pub struct ZookeeperUrlError {
    reason: &'static str,
}

impl ZookeeperUrl {
    pub const SCHEME: &str = "zookeeper://";

    /// # Errors
    /// If it is none.
    pub fn parse(url: &str) -> Result<Self, ZookeeperUrlError> {
        let fault = |reason| ZookeeperUrlError { reason };
        let rest = url.strip_prefix(Self::SCHEME).ok_or_else(|| fault("it begins with something else"))?;
        let (servers, root) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let is_server = |server: &str| {
            let has_port =
                |(host, port): (&str, &str)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0);
            // Without a port it is ZooKeeper's own, 2181.
            let is_whole = server.rsplit_once(':').map_or(!server.is_empty(), has_port);
            is_whole && !server.contains(['@', ' '])
        };
        if rest.contains(['?', '#']) {
            return Err(fault("it has options, and there are none"));
        }
        if !servers.split(',').all(is_server) {
            return Err(fault("its servers are not to be read; credentials are told apart"));
        }
        let root = match root.strip_suffix('/').unwrap_or(root) {
            "" => None,
            root => Some(NodePath::new(root).map_err(|_| fault("its root is no path"))?),
        };
        Ok(ZookeeperUrl { servers: servers.to_owned(), root })
    }

    /// As the client takes them.
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
    fn servers_and_root_are_told_apart() {
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
    fn what_is_none_is_told_how_to_be_one() {
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
