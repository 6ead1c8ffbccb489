//! Which server, and as whom: what was said, or else what `serve` left in its data folder.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches};
use reveille_client::{CertificateDer, Client, Options};
use rustls::pki_types::pem::PemObject as _;

use crate::{identity, server_url};

#[derive(Args, Debug)]
#[command(next_help_heading = "Server")]
pub(super) struct Connect {
    /// The server's address [default: that of the server that runs on --data]
    #[arg(long, env = "REVEILLE_URL", value_name = "URL")]
    server: Option<String>,
    #[command(flatten)]
    key: Key,
    /// The data folder of the server on this machine
    #[arg(long, env = "REVEILLE_DATA", default_value = "./data", value_name = "FOLDER")]
    data: PathBuf,
    /// An authority to trust beside the public ones, in PEM, for a server with a certificate of your own
    #[arg(long, env = "REVEILLE_ROOT_CERTIFICATE", value_name = "FILE")]
    root_certificate: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct KeyArguments {
    /// A file with the key [default: one that `serve` left in --data]
    #[arg(long, env = "REVEILLE_KEY_FILE", value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The key itself; on the command line everyone on this machine sees it, so prefer the variable
    #[arg(long, env = "REVEILLE_KEY", hide_env_values = true)]
    key: Option<Hidden>,
}

/// At most one of the two. A flag wins over the other one's variable, which `conflicts_with` would refuse to tell apart.
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
                    "there are a --key-file (REVEILLE_KEY_FILE) and a --key (REVEILLE_KEY); give one of them\n",
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

/// A key as it was given.
#[derive(Clone)]
struct Hidden(String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(…)")
    }
}

/// Takes any text: a refusal here would be printed with it.
impl FromStr for Hidden {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Hidden(text.to_owned()))
    }
}

/// Whose key is taken if none was named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum As {
    /// The tenant `default`'s admin.
    Admin,
    Operator,
}

impl Connect {
    /// # Errors
    /// If the server, the key or the certificate was not said and is not to be found, with what to say.
    pub(super) fn client(&self, who: As) -> anyhow::Result<Client> {
        let url = match &self.server {
            Some(url) => url.clone(),
            None => self.url_left_behind()?,
        };
        let key = self.key(who)?;
        let options = Options { extra_roots: self.extra_roots()?, ..Options::default() };
        Ok(Client::new(&url, &key, options)?)
    }

    fn url_left_behind(&self) -> anyhow::Result<String> {
        let path = server_url::path(&self.data);
        fs::read_to_string(&path).map(|text| text.trim().to_owned()).with_context(|| {
            format!(
                "no server is known: {} is not to be read. Start one with `reveille serve`, name its folder with --data, \
                 or say where it is with --server or REVEILLE_URL",
                path.display()
            )
        })
    }

    fn key(&self, who: As) -> anyhow::Result<String> {
        let Key(given) = &self.key;
        if let Some(Hidden(key)) = &given.key {
            return Ok(key.clone());
        }
        let path = match (&given.key_file, who) {
            (Some(path), _) => path.clone(),
            (None, As::Admin) => identity::admin_key_path(&self.data),
            (None, As::Operator) => identity::operator_key_path(&self.data),
        };
        fs::read_to_string(&path).with_context(|| {
            format!(
                "no key: {} is not to be read. Give --key-file FILE, or put the key in REVEILLE_KEY",
                path.display()
            )
        })
    }

    fn extra_roots(&self) -> anyhow::Result<Vec<CertificateDer<'static>>> {
        let Some(path) = &self.root_certificate else { return Ok(Vec::new()) };
        let roots = read_roots(path).with_context(|| format!("{} is no certificate in PEM", path.display()))?;
        if roots.is_empty() {
            bail!("there is no certificate in {}", path.display());
        }
        Ok(roots)
    }
}

fn read_roots(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    Ok(CertificateDer::pem_file_iter(path)?.collect::<Result<_, _>>()?)
}
