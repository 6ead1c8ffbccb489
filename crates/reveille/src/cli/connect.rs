//! Options of a command for the server's address and the key. The defaults come from the files that `serve` writes to
//! its data folder.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches};
use reveille_client::{CertificateDer, Client, Error, Options};
use rustls::pki_types::pem::PemObject as _;
use sha2::{Digest as _, Sha256};

use super::show::escaped;
use crate::{identity, server_url};

#[derive(Args, Debug)]
#[command(next_help_heading = "Server")]
pub(super) struct Connect {
    /// URL of the server [default: the URL of the server that runs on --data]
    #[arg(long, env = "REVEILLE_URL", value_name = "URL")]
    server: Option<String>,
    #[command(flatten)]
    key: Key,
    /// Data folder of the server on this machine
    #[arg(long, env = "REVEILLE_DATA", default_value = "./data", value_name = "FOLDER")]
    data: PathBuf,
    /// PEM file with a certificate authority to trust in addition to the public authorities
    #[arg(long, env = "REVEILLE_ROOT_CERTIFICATE", value_name = "FILE")]
    root_certificate: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct KeyArguments {
    /// File with the key [default: a key file that `serve` wrote to --data]
    #[arg(long, env = "REVEILLE_KEY_FILE", value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Key for the server; prefer the environment variable, because every user of this machine can see a key on the
    /// command line
    #[arg(long, env = "REVEILLE_KEY", hide_env_values = true)]
    key: Option<Hidden>,
}

/// Key or key file, but not both. The flag of one option overrides the environment variable of the other option.
/// `conflicts_with` cannot express this rule, because it treats flags and variables alike.
#[derive(Debug)]
struct Key(KeyArguments);

impl Args for Key {
    fn augment_args(command: clap::Command) -> clap::Command {
        KeyArguments::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        KeyArguments::augment_args_for_update(command)
    }
}

impl FromArgMatches for Key {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = KeyArguments::from_arg_matches(matches)?;
        let is_flag = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        match (&given.key_file, &given.key) {
            (Some(_), Some(_)) => match (is_flag("key_file"), is_flag("key")) {
                (true, false) => Ok(Key(KeyArguments { key: None, ..given })),
                (false, true) => Ok(Key(KeyArguments { key_file: None, ..given })),
                _ => Err(clap::Error::raw(
                    ErrorKind::ArgumentConflict,
                    "both --key-file (REVEILLE_KEY_FILE) and --key (REVEILLE_KEY) are set: set only one of them\n",
                )),
            },
            _ => Ok(Key(given)),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Key::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Key as the user wrote it. The `Debug` output of this type does not contain the key.
#[derive(Clone)]
struct Hidden(String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(…)")
    }
}

/// Accepts any text. If the parser rejected a key, clap would print the key in its error.
impl FromStr for Hidden {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Hidden(text.to_owned()))
    }
}

/// Key that a command reads from the data folder if the user names no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DefaultKey {
    /// Admin key of the tenant `default`.
    Admin,
    /// Key of the first operator.
    Operator,
}

/// Prints on standard error why the command waits before it repeats a request. Prints nothing if the wait is shorter
/// than 200 ms.
fn report_retry(error: &Error, wait: Duration) {
    const SHORT: Duration = Duration::from_millis(200);
    if wait >= SHORT {
        // If standard error is closed, the text is lost.
        let _unwritten = writeln!(
            io::stderr(),
            "reveille: {}; the next attempt is in {} ms",
            escaped(&error.to_string()),
            wait.as_millis()
        );
    }
}

impl Connect {
    /// Returns a client of the server.
    ///
    /// # Errors
    /// Returns an error if the function cannot find or read the server's URL, the key or the certificate. If the URL or
    /// the key is missing, the error names the flags that set the missing value.
    pub(super) fn client(&self, default_key: DefaultKey) -> anyhow::Result<Client> {
        let url = match &self.server {
            Some(url) => url.clone(),
            None => self.url_of_local_server()?,
        };
        let key = self.key(default_key)?;
        let on_retry = Some(report_retry as fn(&Error, Duration));
        let options = Options { on_retry, extra_roots: self.extra_roots()?, ..Options::default() };
        Ok(Client::new(&url, &key, options)?)
    }

    /// Returns a short text that identifies the server's URL and the id of the key. It contains no secret.
    ///
    /// # Errors
    /// Returns an error if the function cannot find or read the server's URL or the key.
    pub(super) fn fingerprint(&self, default_key: DefaultKey) -> anyhow::Result<String> {
        let url = match &self.server {
            Some(url) => url.clone(),
            None => self.url_of_local_server()?,
        };
        let key = self.key(default_key)?;
        let id = key.trim().split_once('.').map_or("", |(id, _)| id);
        let hash = Sha256::digest(format!("{}\n{id}", url.trim_end_matches('/')));
        Ok(hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    }

    fn url_of_local_server(&self) -> anyhow::Result<String> {
        let path = server_url::path(&self.data);
        fs::read_to_string(&path).map(|text| text.trim().to_owned()).with_context(|| {
            format!(
                "no server found, because the file {} cannot be read: start a server with `reveille serve`, name its \
                 data folder with --data, or give its URL with --server or REVEILLE_URL",
                path.display()
            )
        })
    }

    fn key(&self, default_key: DefaultKey) -> anyhow::Result<String> {
        let Key(given) = &self.key;
        if let Some(Hidden(key)) = &given.key {
            return Ok(key.clone());
        }
        let path = match (&given.key_file, default_key) {
            (Some(path), _) => path.clone(),
            (None, DefaultKey::Admin) => identity::admin_key_path(&self.data),
            (None, DefaultKey::Operator) => identity::operator_key_path(&self.data),
        };
        fs::read_to_string(&path).with_context(|| {
            format!(
                "no API key, because the file {} cannot be read: use --key-file FILE or REVEILLE_KEY",
                path.display()
            )
        })
    }

    fn extra_roots(&self) -> anyhow::Result<Vec<CertificateDer<'static>>> {
        let Some(path) = &self.root_certificate else { return Ok(Vec::new()) };
        let roots = read_roots(path)
            .with_context(|| format!("cannot read PEM certificates from the file {}", path.display()))?;
        if roots.is_empty() {
            bail!("no certificate in {}", path.display());
        }
        Ok(roots)
    }
}

fn read_roots(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    Ok(CertificateDer::pem_file_iter(path)?.collect::<Result<_, _>>()?)
}
