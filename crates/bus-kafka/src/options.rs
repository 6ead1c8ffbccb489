//! URL of a Kafka cluster.

use std::fmt;
use std::path::{Path, PathBuf};

use bus::BusError;
use percent_encoding::percent_decode_str;
use rdkafka::ClientConfig;

/// Port of a broker whose URL names none.
const DEFAULT_PORT: u16 = 9092;

/// URL `kafka://HOST:PORT,HOST:PORT?PARAMETERS` with some of the brokers of one cluster. The brokers name the others.
///
/// With `kafka+tls://`, the client encrypts its connections and checks that the certificate of each broker is valid for
/// its host name. `sslrootcert=FILE` names a PEM file with the trusted root certificates. Without it, the client trusts
/// the root certificates of the operating system.
///
/// With `USER@` or `USER:PASSWORD@` before the brokers, each connection authenticates this user with SASL.
/// `passwordfile=FILE` names a file with the password. Each new client reads the file. `mechanism` is
/// `scram-sha-512` (the default), `scram-sha-256` or `plain`. `plain` sends the password itself, so it requires TLS.
///
/// `assignor` is `cooperative-sticky` (the default) or `range`. All members of a group must use the same assignor. With
/// `range`, each change of a group revokes all partitions of all members. The debug text contains no password.
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaUrl {
    servers: String,
    has_tls: bool,
    roots: Option<PathBuf>,
    user: Option<String>,
    password: Option<String>,
    password_file: Option<PathBuf>,
    mechanism: Mechanism,
    assignor: Assignor,
}

/// Rule by which a group shares its partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Assignor {
    /// A change of the group revokes only the partitions that move.
    #[default]
    CooperativeSticky,
    /// A change of the group revokes all partitions.
    Range,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Mechanism {
    #[default]
    ScramSha512,
    ScramSha256,
    Plain,
}

/// Reason why a URL cannot be used. The error text contains no part of a password.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid Kafka URL: {0}; use kafka://HOST:PORT,HOST:PORT, or kafka+tls:// for TLS")]
pub struct KafkaUrlError(&'static str);

impl KafkaUrl {
    /// Lower-case text at the start of a URL without TLS.
    pub const SCHEME: &str = "kafka://";
    /// Lower-case text at the start of a URL with TLS.
    pub const TLS_SCHEME: &str = "kafka+tls://";

    /// Parses a URL.
    ///
    /// # Errors
    /// Returns an error if the text is not a valid Kafka URL.
    pub fn parse(url: &str) -> Result<Self, KafkaUrlError> {
        let (rest, has_tls) = match (url.strip_prefix(Self::SCHEME), url.strip_prefix(Self::TLS_SCHEME)) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => return Err(KafkaUrlError("the URL does not start with kafka:// or kafka+tls://")),
        };
        let (authority, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        if authority.contains(['/', '#']) {
            return Err(KafkaUrlError("the URL has no path; write / and # in a password as %2F and %23"));
        }
        let (user, servers) = authority.rsplit_once('@').map_or((None, authority), |(user, rest)| (Some(user), rest));
        let servers: Option<Vec<String>> = servers.split(',').map(server_of).collect();
        let servers = servers.ok_or(KafkaUrlError(
            "each broker must have the form HOST or HOST:PORT; write @, : and ? in a password as %40, %3A and %3F",
        ))?;
        let (user, password) = user.map(user_of).transpose()?.unzip();
        let mut parsed = KafkaUrl {
            servers: servers.join(","),
            has_tls,
            roots: None,
            user,
            password: password.flatten(),
            password_file: None,
            mechanism: Mechanism::default(),
            assignor: Assignor::default(),
        };
        for parameter in query.into_iter().flat_map(|query| query.split('&')) {
            parsed.set(parameter)?;
        }
        if parsed.user.is_some() && parsed.mechanism == Mechanism::Plain && !has_tls {
            return Err(KafkaUrlError("the mechanism plain sends the password itself, so it requires kafka+tls://"));
        }
        Ok(parsed)
    }

    fn set(&mut self, parameter: &str) -> Result<(), KafkaUrlError> {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match (name, value) {
            ("sslrootcert", "") => return Err(KafkaUrlError("the parameter sslrootcert has no value")),
            ("sslrootcert", _) if !self.has_tls => {
                return Err(KafkaUrlError("sslrootcert is for TLS, so the URL must start with kafka+tls://"));
            }
            ("sslrootcert", file) => self.roots = Some(PathBuf::from(decoded(file)?)),
            ("mechanism" | "passwordfile", _) if self.user.is_none() => {
                return Err(KafkaUrlError(
                    "the parameters mechanism and passwordfile require USER@ before the brokers",
                ));
            }
            ("passwordfile", "") => return Err(KafkaUrlError("the parameter passwordfile has no value")),
            ("passwordfile", _) if self.password.is_some() => {
                return Err(KafkaUrlError(
                    "the URL has both a password and the parameter passwordfile; remove one of them",
                ));
            }
            ("passwordfile", file) => self.password_file = Some(PathBuf::from(decoded(file)?)),
            ("mechanism", "scram-sha-512") => self.mechanism = Mechanism::ScramSha512,
            ("mechanism", "scram-sha-256") => self.mechanism = Mechanism::ScramSha256,
            ("mechanism", "plain") => self.mechanism = Mechanism::Plain,
            ("mechanism", _) => {
                return Err(KafkaUrlError("the mechanisms are scram-sha-512, scram-sha-256 and plain"));
            }
            ("assignor", "cooperative-sticky") => self.assignor = Assignor::CooperativeSticky,
            ("assignor", "range") => self.assignor = Assignor::Range,
            ("assignor", _) => return Err(KafkaUrlError("the assignors are cooperative-sticky and range")),
            _ => {
                return Err(KafkaUrlError(
                    "the parameters of the URL are sslrootcert, passwordfile, mechanism and assignor",
                ));
            }
        }
        Ok(())
    }

    /// Returns true if the URL contains a password of its user. The URL of a file with a password does not contain it.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.password.is_some()
    }

    /// Replaces the password of the URL's user. Does nothing if `password` is `None`, or if the URL has no user.
    #[must_use]
    pub fn with_password(self, password: Option<String>) -> Self {
        KafkaUrl { password: password.or(self.password), ..self }
    }

    /// Returns the assignor of groups.
    #[must_use]
    pub fn assignor(&self) -> Assignor {
        self.assignor
    }

    /// Returns librdkafka's settings for every client of the cluster.
    ///
    /// # Errors
    /// Returns [`BusError::Invalid`] if the user has no password, or if the file with the password cannot be read.
    pub(crate) fn config(&self) -> Result<ClientConfig, BusError> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.servers).set("client.id", "reveille");
        config.set("allow.auto.create.topics", "false");
        // A broker that comes back is used soon.
        config.set("reconnect.backoff.ms", "50").set("reconnect.backoff.max.ms", "1000");
        // A client notices new partitions within this time.
        config.set("topic.metadata.refresh.interval.ms", "5000");
        let protocol = match (self.has_tls, &self.user) {
            (false, None) => "plaintext",
            (true, None) => "ssl",
            (false, Some(_)) => "sasl_plaintext",
            (true, Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        if let Some(roots) = &self.roots {
            config.set("ssl.ca.location", roots.to_string_lossy());
        }
        if let Some(user) = &self.user {
            let password = match (&self.password, &self.password_file) {
                (Some(password), _) => password.clone(),
                (None, Some(file)) => read_password(file, user)?,
                (None, None) => {
                    let text = format!(
                        "the user {user} in the Kafka URL has no password; add passwordfile=FILE with a file that \
                         contains the password"
                    );
                    return Err(BusError::Invalid(text));
                }
            };
            let mechanism = match self.mechanism {
                Mechanism::ScramSha512 => "SCRAM-SHA-512",
                Mechanism::ScramSha256 => "SCRAM-SHA-256",
                Mechanism::Plain => "PLAIN",
            };
            config.set("sasl.mechanism", mechanism).set("sasl.username", user).set("sasl.password", password);
        }
        Ok(config)
    }
}

impl fmt::Debug for KafkaUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KafkaUrl { servers, has_tls, roots, user, password: _, password_file, mechanism, assignor } = self;
        let mut debug = f.debug_struct("KafkaUrl");
        debug.field("servers", servers).field("has_tls", has_tls).field("roots", roots).field("user", user);
        debug
            .field("password_file", password_file)
            .field("mechanism", mechanism)
            .field("assignor", assignor)
            .finish_non_exhaustive()
    }
}

/// Reads the password of a user. The file may end with a line break.
fn read_password(file: &Path, user: &str) -> Result<String, BusError> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(text.trim_end_matches(['\r', '\n']).to_owned()),
        Err(error) => {
            let file = file.display();
            Err(BusError::Invalid(format!(
                "cannot read the file {file} with the password of the Kafka user {user}: {error}"
            )))
        }
    }
}

fn decoded(text: &str) -> Result<String, KafkaUrlError> {
    let decoded = percent_decode_str(text).decode_utf8();
    Ok(decoded.map_err(|_| KafkaUrlError("a decoded part of the URL is not UTF-8"))?.into_owned())
}

/// Parses `USER` or `USER:PASSWORD`.
fn user_of(text: &str) -> Result<(String, Option<String>), KafkaUrlError> {
    let (name, password) = text.split_once(':').map_or((text, None), |(name, password)| (name, Some(password)));
    if name.is_empty() {
        return Err(KafkaUrlError("the user before @ is empty"));
    }
    Ok((decoded(name)?, password.map(decoded).transpose()?))
}

/// Parses `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`. Returns the broker with its port.
fn server_of(text: &str) -> Option<String> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok().filter(|port| *port != 0)?),
        _ => (text, DEFAULT_PORT),
    };
    let is_ipv6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).is_some_and(|host| host.contains(':'));
    let is_name = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    (is_ipv6 || is_name).then(|| format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> Vec<(String, String)> {
        let config = KafkaUrl::parse(url).unwrap().config().unwrap();
        let names = ["bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.username", "ssl.ca.location"];
        let setting = |name: &str| config.get(name).map(|value| (name.to_owned(), value.to_owned()));
        names.into_iter().filter_map(setting).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn url_names_brokers_user_and_tls() {
        let plain = [("bootstrap.servers", "a:9092,[::1]:9093"), ("security.protocol", "plaintext")];
        assert_eq!(settings("kafka://a,[::1]:9093"), pairs(&plain));
        let secure = [
            ("bootstrap.servers", "a:1"),
            ("security.protocol", "sasl_ssl"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.username", "ann@x"),
            ("ssl.ca.location", "/root crt"),
        ];
        assert_eq!(settings("kafka+tls://ann%40x:pass%3aword@a:1?sslrootcert=/root%20crt"), pairs(&secure));
        let url = KafkaUrl::parse("kafka+tls://ann:secret@a?mechanism=plain&assignor=range").unwrap();
        assert_eq!((url.assignor(), url.has_password()), (Assignor::Range, true));
        assert_eq!(url.config().unwrap().get("sasl.password"), Some("secret"));
        assert!(!format!("{url:?}").contains("secret"), "{url:?}");
    }

    #[test]
    fn url_without_a_password_requires_a_file() {
        let url = KafkaUrl::parse("kafka://ann@a").unwrap();
        let error = url.config().unwrap_err().to_string();
        assert!(error.contains("ann") && error.contains("add passwordfile=FILE"), "{error}");
        assert_eq!(url.with_password(Some("x".to_owned())).config().unwrap().get("sasl.password"), Some("x"));
    }

    #[test]
    fn password_is_read_from_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        let url = format!("kafka://ann@a?passwordfile={}", file.display());
        let error = KafkaUrl::parse(&url).unwrap().config().unwrap_err().to_string();
        assert!(error.contains("cannot read the file") && error.contains("ann"), "{error}");
        std::fs::write(&file, "pass word\n").unwrap();
        let url = KafkaUrl::parse(&url).unwrap();
        assert_eq!(url.config().unwrap().get("sasl.password"), Some("pass word"));
        assert!(!format!("{url:?}").contains("pass word"), "{url:?}");
    }

    #[test]
    fn invalid_url_is_rejected_with_the_part_to_change() {
        for (url, expected) in [
            ("http://a", "does not start"),
            ("KAFKA://a", "does not start"),
            ("kafka://", "HOST"),
            ("kafka://a:0", "HOST"),
            ("kafka://a:70000", "HOST"),
            ("kafka://a,,b", "HOST"),
            ("kafka://a b", "HOST"),
            ("kafka://a/topic", "no path"),
            ("kafka://ann:pa/ss@a", "%2F"),
            ("kafka://:secret@a", "user before @ is empty"),
            ("kafka://a?mechanism=plain", "require USER@"),
            ("kafka://a?passwordfile=/x", "require USER@"),
            ("kafka://ann@a?passwordfile=", "has no value"),
            ("kafka://ann:secret@a?passwordfile=/x", "remove one of them"),
            ("kafka://ann:secret@a?mechanism=plain", "requires kafka+tls://"),
            ("kafka://ann:secret@a?mechanism=gssapi", "mechanisms are"),
            ("kafka://a?assignor=sticky", "assignors are"),
            ("kafka://a?sslrootcert=/x", "must start with kafka+tls://"),
            ("kafka+tls://a?sslrootcert=", "has no value"),
            ("kafka://a?x=1", "parameters of the URL are"),
            ("kafka://%ff@a", "not UTF-8"),
        ] {
            let error = KafkaUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{url}: {error}");
        }
    }
}
