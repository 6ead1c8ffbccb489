//! Commands `backup`, `restore` and `check` for the data of the embedded store.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use cli_support::console;
use runtime::{Runtime, TaskSet};
use store_embedded::{EmbeddedStore, Options};

use crate::control::{self, Request};
use crate::data_folder::{explain_open, make_private, store_path};
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
    /// Folder that `backup` created; this command does not change its content
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
    /// Backup to verify instead of the data folder; the command restores it into a temporary folder beside the backup
    #[arg(long, value_name = "FOLDER")]
    backup: Option<PathBuf>,
}

pub(crate) async fn backup(runtime: &Runtime, arguments: &BackupArguments) -> anyhow::Result<()> {
    // The server may have another working directory, so the request must contain an absolute path.
    let to = std::path::absolute(&arguments.to).context("cannot determine the absolute path of the backup folder")?;
    execute(runtime, &arguments.data, &Request::Backup(to), "copying").await
}

pub(crate) async fn check(runtime: &Runtime, arguments: &CheckArguments) -> anyhow::Result<()> {
    match &arguments.backup {
        Some(backup) => check_backup(runtime, backup).await,
        None => execute(runtime, &arguments.data, &Request::Check, "reading all data").await,
    }
}

/// Restores the backup into a temporary folder. The restore verifies the restored data. If the backup and the temporary
/// folder are on the same file system, the restore creates hard links to the tables instead of copies.
async fn check_backup(runtime: &Runtime, backup: &Path) -> anyhow::Result<()> {
    let backup = std::path::absolute(backup).context("cannot determine the absolute path of the backup")?;
    let beside = backup.parent().unwrap_or(&backup);
    let folder = tempfile::Builder::new().prefix(".reveille-check-").tempdir_in(beside);
    let folder = folder.with_context(|| {
        format!(
            "cannot create a temporary folder in {}, beside the backup: copy the backup to a writable folder",
            beside.display()
        )
    })?;
    let data = folder.path().join("data");
    let restored = store_embedded::restore(runtime, &backup, &data);
    let verified = Progress::new(runtime).during("reading all data", restored).await?;
    Ok(console::line(&control::no_damage(&verified))?)
}

pub(crate) async fn restore(runtime: &Runtime, arguments: &RestoreArguments) -> anyhow::Result<()> {
    let RestoreArguments { from, data } = arguments;
    let store = store_path(data);
    if data.exists() {
        make_private(runtime, data).await?;
    }
    let restored = Progress::new(runtime).during("copying", store_embedded::restore(runtime, from, &store)).await;
    let verified = restored.with_context(|| format!("cannot restore {}", from.display()))?;
    console::line(&control::no_damage(&verified))?;
    console::line(&format!(
        "restored the data to {}; start the server with `reveille serve --data {0}`",
        data.display()
    ))?;
    let key = identity::admin_key_path(data);
    if !key.exists() {
        console::line(&format!(
            "a backup contains no keys: copy the original store.key to {} (the server does not start without \
             this file), and the original admin.key to {}; API keys remain valid",
            data.join("store.key").display(),
            key.display()
        ))?;
    }
    Ok(())
}

async fn execute(runtime: &Runtime, data: &Path, request: &Request, name: &str) -> anyhow::Result<()> {
    ensure!(
        store_path(data).exists(),
        "{} contains no Reveille data: name the data folder with --data",
        data.display()
    );
    let outcome = Progress::new(runtime).during(name, handle(runtime, data, request)).await?;
    console::line(&outcome).context("cannot print the result")
}

/// Sends the request to the running server. If no server runs on the folder, the function opens the data and handles
/// the request itself.
async fn handle(runtime: &Runtime, data: &Path, request: &Request) -> anyhow::Result<String> {
    if let Some(outcome) = control::send(data, request).await? {
        return Ok(outcome);
    }
    make_private(runtime, data).await?;
    let tasks = TaskSet::new(runtime);
    let opened = EmbeddedStore::open(runtime, &tasks, &store_path(data), Options::default()).await;
    let store = opened.map_err(|error| explain_open(error, data))?;
    let outcome = control::handle(runtime, &store, data, request).await;
    store.close().await;
    outcome
}
