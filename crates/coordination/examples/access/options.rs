//! Options of the examples for the access to the nodes that they create.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use reveille_coordination::tree::Credentials;

/// A user must choose one of these options, so that nodes are open to all clients only on purpose.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Access {
    /// File with credentials in lines NAME:PASSWORD, which `reveille credentials` creates; only processes with the same
    /// credentials can access the nodes
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,
    /// Let every client of the engine access the nodes
    #[arg(long)]
    open: bool,
}

impl Access {
    /// Returns the credentials of this process. The recipes' client has them in its session, so
    /// [`reveille_coordination::recipes::Client::default_acl`] then gives access only to these credentials.
    pub(crate) fn credentials(&self) -> anyhow::Result<Vec<Credentials>> {
        let Some(path) = &self.credentials else { return Ok(Vec::new()) };
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let parse = |line: &str| {
            let (name, password) = line.split_once(':')?;
            Some(Credentials { name: name.to_owned(), password: password.to_owned() })
        };
        let all: Option<Vec<Credentials>> = text.lines().filter(|line| !line.is_empty()).map(parse).collect();
        let all = all.with_context(|| format!("{}: each line must have the form NAME:PASSWORD", path.display()))?;
        ensure!(!all.is_empty(), "{} has no line NAME:PASSWORD", path.display());
        Ok(all)
    }
}
