//! Options of the examples for the access to the nodes that they create.

use std::path::PathBuf;

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
    /// Returns the user's choice.
    pub(crate) fn choice(&self) -> anyhow::Result<coordination_connect::Access> {
        Ok(match &self.credentials {
            Some(path) => coordination_connect::Access::from_file(path)?,
            None => coordination_connect::Access::Open,
        })
    }
}
