//! Commands `backup`, `restore` and `check` for the data of the embedded store.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use cli_support::console;
use runtime::{Runtime, TaskSet};
use store_embedded::{EmbeddedStore, Options};

use crate::control::{self, Request};
use crate::data_folder::{explain_open, store_path};
use crate::identity;
use crate::progress::Progress;

#[derive(Args, Debug)]
pub(crate) struct BackupArguments {
    /// Data folder; a server may be running on it
    #[arg(long, env = "REVEILLE_DATA", default_value = "./data")]
    data: PathBuf,
    /// Folder to create for the backup
    #[arg(long)]
    to: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct RestoreArguments {
    /// Folder that `backup` created; this command does not change it
    #[arg(long)]
    from: PathBuf,
    /// Data folder to create
    #[arg(long)]
    data: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct CheckArguments {
    /// Data folder; a server may be running on it
    #[arg(long, env = "REVEILLE_DATA", default_value = "./data")]
    data: PathBuf,
}

pub(crate) async fn backup(runtime: &Runtime, arguments: &BackupArguments) -> anyhow::Result<()> {
    // The server may have another working directory, so the request must contain an absolute path.
    let to = std::path::absolute(&arguments.to).context("cannot determine the absolute path of the backup folder")?;
    execute(runtime, &arguments.data, &Request::Backup(to), "copying").await
}

pub(crate) async fn check(runtime: &Runtime, arguments: &CheckArguments) -> anyhow::Result<()> {
    execute(runtime, &arguments.data, &Request::Check, "reading all data").await
}

pub(crate) async fn restore(runtime: &Runtime, arguments: &RestoreArguments) -> anyhow::Result<()> {
    let RestoreArguments { from, data } = arguments;
    let store = store_path(data);
    Progress::new(runtime).during("copying", store_embedded::restore(runtime, from, &store)).await?;
    console::line(&format!("restored to {}; start it with `reveille serve --data {0}`", data.display()))?;
    let key = identity::admin_key_path(data);
    if !key.exists() {
        console::line(&format!(
            "a backup contains no keys: copy the original store.key to {}, without which the server does not start, and \
             the original admin.key to {}; API keys remain valid",
            data.join("store.key").display(),
            key.display()
        ))?;
    }
    Ok(())
}

async fn execute(runtime: &Runtime, data: &Path, request: &Request, name: &str) -> anyhow::Result<()> {
    ensure!(store_path(data).exists(), "{} holds no data of Reveille: name the folder with --data", data.display());
    let outcome = Progress::new(runtime).during(name, handle(runtime, data, request)).await?;
    console::line(&outcome).context("cannot write the result")
}

/// Sends the request to the running server. If no server runs on the folder, the function opens the data and handles
/// the request itself.
async fn handle(runtime: &Runtime, data: &Path, request: &Request) -> anyhow::Result<String> {
    if let Some(outcome) = control::send(data, request).await? {
        return Ok(outcome);
    }
    let tasks = TaskSet::new(runtime);
    let opened = EmbeddedStore::open(runtime, &tasks, &store_path(data), Options::default()).await;
    let store = opened.map_err(|error| explain_open(error, data))?;
    let outcome = control::handle(&store, request).await;
    store.close().await;
    outcome
}
