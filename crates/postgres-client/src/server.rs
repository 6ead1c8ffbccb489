//! Address and connection options of a PostgreSQL server.
//!
//! docs/decisions/0206-reject-poolers-that-drop-settings.md gives the reasons for the check of the settings.

use std::fmt;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use percent_encoding::percent_decode_str;
use runtime::Runtime;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::{AsyncMessage, Client, Config, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::failure::Failure;
use crate::tls::{self, Mode};
use crate::url_error::UrlError;

/// Options of the connections to a server, in addition to the options in its URL.
#[derive(Clone)]
pub struct Options {
    /// Password that replaces the one in the URL.
    pub password: Option<String>,
    /// Name that `pg_stat_activity` shows for these connections.
    pub application_name: String,
    /// Longest time to establish a connection. The default is 5 s. With a shorter time, attempts to connect to a busy
    /// server may fail.
    pub connect_timeout: Duration,
    /// Longest duration of a statement. The server cancels a statement that takes longer. If the server does not
    /// respond, the client closes the connection one second after this time. The default is 10 s.
    pub statement_timeout: Duration,
    /// Settings of each session, such as `("jit", "off")`. Settings in the URL's `options` override these settings. A
    /// number has the unit of the setting in the view `pg_settings`.
    pub settings: Vec<(&'static str, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            password: None,
            application_name: "reveille".to_owned(),
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(10),
            settings: Vec::new(),
        }
    }
}

/// Address and connection options of one server. Its `Display` text is the server's URL without the password.
#[derive(Clone)]
pub struct Server {
    config: Config,
    tls: MakeRustlsConnect,
    shown: String,
    connect_timeout: Duration,
    statement_timeout: Duration,
    /// Settings in the startup message of each connection, without those in the URL's `options`.
    settings: Vec<(&'static str, String)>,
}

/// Stream of the messages that the server sends without a request (notices, notifications). The stream ends when the
/// connection ends. The connection makes progress only while the caller polls this stream.
pub type Messages = BoxStream<'static, Result<AsyncMessage, tokio_postgres::Error>>;

impl Server {
    /// Parses a libpq URL. This crate does not support client certificates. The parameter `sslrootcert` names a PEM
    /// file. If the URL names several servers, the client connects to the server that accepts writes.
    ///
    /// # Errors
    /// Returns an error if the URL is invalid, or a file that it names cannot be read.
    pub fn new(url: &str, options: Options) -> Result<Self, UrlError> {
        let (rest, ssl) = take_ssl(url)?;
        let mut config: Config = rest.parse().map_err(|error| UrlError::Form(reason_of(&error)))?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(UrlError::NoHost);
        }
        // A host name contains no @, so an @ in the parsed host is part of the password. The error must not contain the
        // password.
        if config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(name) if name.contains('@'))) {
            let reason = "the host contains @, which is probably part of the password";
            return Err(UrlError::Form(reason.to_owned()));
        }
        if let Some(password) = &options.password {
            config.password(password);
        }
        let statement_timeout = options.statement_timeout;
        config.ssl_mode(ssl.mode.protocol_mode());
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        config.connect_timeout(options.connect_timeout);
        config.keepalives(true).keepalives_idle(Duration::from_secs(10)).keepalives_interval(Duration::from_secs(3));
        config.keepalives_retries(3).tcp_user_timeout(statement_timeout);
        if config.get_application_name().is_none() {
            config.application_name(options.application_name);
        }
        let mut settings = options.settings;
        settings.push(("statement_timeout", statement_timeout.as_millis().to_string()));
        let mut arguments: Vec<String> =
            settings.iter().map(|(name, value)| format!("-c {name}={}", escape(value))).collect();
        arguments.extend(config.get_options().map(str::to_owned));
        config.options(arguments.join(" "));
        let tls = MakeRustlsConnect::new(tls::client(ssl.mode, ssl.roots.as_deref())?);
        let shown = show(&config);
        Ok(Server { config, tls, shown, connect_timeout: options.connect_timeout, statement_timeout, settings })
    }

    /// Opens a connection, and checks that its settings are in effect. The connection makes progress only while the
    /// caller polls `Messages`.
    ///
    /// # Errors
    /// Returns an error if the client cannot establish the connection within the connect timeout, if the server rejects
    /// it, or if a setting is not in effect.
    pub async fn connect(&self, runtime: &Runtime) -> Result<(Client, Messages), Failure> {
        let connected = runtime.timeout(self.connect_timeout, Box::pin(self.connect_and_check())).await;
        connected.unwrap_or_else(|| Err(Failure::Silent { server: self.shown.clone(), waited: self.connect_timeout }))
    }

    async fn connect_and_check(&self) -> Result<(Client, Messages), Failure> {
        let connected = self.config.connect(self.tls.clone()).await;
        let (client, mut connection) = connected.map_err(|error| Failure::of_connecting(&self.shown, &error))?;
        let mut messages = futures_util::stream::poll_fn(move |context| connection.poll_message(context)).boxed();
        let ended = async {
            loop {
                match messages.next().await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return self.failure(&error),
                    None => {
                        let reason = "the server closed the connection".to_owned();
                        return Failure::Unreachable { server: self.shown.clone(), reason };
                    }
                }
            }
        };
        tokio::select! {
            biased;
            checked = self.check_settings(&client) => checked?,
            failure = ended => return Err(failure),
        }
        Ok((client, messages))
    }

    /// Checks that the settings of the startup message are in effect. A pooler can drop them without an error.
    async fn check_settings(&self, client: &Client) -> Result<(), Failure> {
        // If the source of a setting is `client`, its value is from the startup message. The value can then differ from
        // `settings`, because the URL can override it. The simple protocol also works with poolers that do not support
        // prepared statements.
        let names: Vec<String> = self.settings.iter().map(|(name, _)| format!("'{name}'")).collect();
        let names = names.join(", ");
        let select = format!("select name, setting from pg_settings where source <> 'client' and name in ({names})");
        let messages = client.simple_query(&select).await.map_err(|error| self.failure(&error))?;
        let mut dropped = Vec::new();
        for message in messages {
            let SimpleQueryMessage::Row(row) = message else { continue };
            let (name, found) = (row.get(0).unwrap_or_default(), row.get(1).unwrap_or_default());
            let expected = self.settings.iter().find(|(expected, _)| *expected == name);
            if let Some((_, value)) = expected.filter(|(_, value)| value != found) {
                dropped.push(format!("{name} is {found} instead of {value}"));
            }
        }
        if dropped.is_empty() {
            return Ok(());
        }
        dropped.sort();
        Err(Failure::Settings { server: self.shown.clone(), reason: dropped.join(", ") })
    }

    /// Returns the longest duration of a statement ([`Options::statement_timeout`]).
    #[must_use]
    pub fn statement_timeout(&self) -> Duration {
        self.statement_timeout
    }

    /// Converts `error`, the error of a statement on this server, into a [`Failure`].
    #[must_use]
    pub fn failure(&self, error: &tokio_postgres::Error) -> Failure {
        Failure::of(&self.shown, error)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.shown)
    }
}

struct Ssl {
    mode: Mode,
    roots: Option<String>,
}

/// Returns the URL without its TLS parameters, and the values of these parameters. The protocol library supports only
/// some TLS parameters, so this crate handles them.
fn take_ssl(url: &str) -> Result<(String, Ssl), UrlError> {
    if !url.starts_with("postgresql://") && !url.starts_with("postgres://") {
        return Err(UrlError::Scheme);
    }
    let mut ssl = Ssl { mode: Mode::Prefer, roots: None };
    // The search for the start of the query begins at the `@`, because the password before the `@` may contain a
    // question mark.
    let authority = url.find('@').unwrap_or(0);
    let Some(query) = url[authority..].find('?').map(|at| authority + at) else { return Ok((url.to_owned(), ssl)) };
    let mut kept = Vec::new();
    for parameter in url[query + 1..].split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let decoded = percent_decode_str(value)
            .decode_utf8()
            .map_err(|_| UrlError::Form("the decoded value of a query parameter is not UTF-8".to_owned()))?;
        match name {
            "sslmode" => ssl.mode = Mode::parse(&decoded)?,
            "sslrootcert" if decoded == "system" => {}
            "sslrootcert" => ssl.roots = Some(decoded.into_owned()),
            _ => kept.push(parameter),
        }
    }
    let separator = if kept.is_empty() { "" } else { "?" };
    Ok((format!("{}{separator}{}", &url[..query], kept.join("&")), ssl))
}

/// Returns the protocol library's error text. The text names options but contains no values.
fn reason_of(error: &tokio_postgres::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Escapes a value for the field `options` of the protocol's startup message.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(' ', "\\ ")
}

fn show(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
    let host = |(at, host): (usize, &Host)| match host {
        Host::Tcp(name) if name.contains(':') => format!("[{name}]:{}", port(at)),
        Host::Tcp(name) => format!("{name}:{}", port(at)),
        Host::Unix(path) => format!("{}:{}", path.display(), port(at)),
    };
    let mut hosts: Vec<String> = config.get_hosts().iter().enumerate().map(host).collect();
    if hosts.is_empty() {
        hosts = config.get_hostaddrs().iter().enumerate().map(|(at, ip)| format!("{ip}:{}", port(at))).collect();
    }
    let user = config.get_user().map(|user| format!("{user}@")).unwrap_or_default();
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("postgresql://{user}{}/{database}", hosts.join(","))
}

#[cfg(test)]
mod tests;
