//! `backup`, `restore` and `check`: the operator's care for the data of the embedded store.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use cli_support::console;
use runtime::{Runtime, TaskSet};
use store_embedded::{EmbeddedStore, Options};

use crate::control::{self, Order};
use crate::data_folder::{explain_open, store_path};
use crate::identity;
use crate::progress::Progress;

#[derive(Args, Debug)]
pub(crate) struct BackupArguments {
    /// The data folder; a server may run on it
    #[arg(long, env = "REVEILLE_DATA", default_value = "./data")]
    data: PathBuf,
    /// The folder to make
    #[arg(long)]
    to: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct RestoreArguments {
    /// The folder that `backup` made; it stays as it is
    #[arg(long)]
    from: PathBuf,
    /// The data folder to make
    #[arg(long)]
    data: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct CheckArguments {
    /// The data folder; a server may run on it
    #[arg(long, env = "REVEILLE_DATA", default_value = "./data")]
    data: PathBuf,
}

pub(crate) async fn backup(runtime: &Runtime, arguments: &BackupArguments) -> anyhow::Result<()> {
    // The server has a current folder of its own, so that it is told a whole path.
    let to = std::path::absolute(&arguments.to).context("cannot tell the whole path of the folder to make")?;
    give(runtime, &arguments.data, &Order::Backup(to), "copying").await
}

pub(crate) async fn check(runtime: &Runtime, arguments: &CheckArguments) -> anyhow::Result<()> {
    give(runtime, &arguments.data, &Order::Check, "reading all of it").await
}

pub(crate) async fn restore(runtime: &Runtime, arguments: &RestoreArguments) -> anyhow::Result<()> {
    let RestoreArguments { from, data } = arguments;
    let store = store_path(data);
    Progress::new(runtime).during("copying", store_embedded::restore(runtime, from, &store)).await?;
    console::line(&format!("restored to {}; start it with `reveille serve --data {0}`", data.display()))?;
    let key = identity::admin_key_path(data);
    if !key.exists() {
        console::line(&format!(
            "a backup holds no keys: {} is yours to copy, without which it does not start; those that worked for requests \
             still do, and {} is yours to copy, too",
            data.join("store.key").display(),
            key.display()
        ))?;
    }
    Ok(())
}

async fn give(runtime: &Runtime, data: &Path, order: &Order, what: &str) -> anyhow::Result<()> {
    ensure!(store_path(data).exists(), "{} holds no data of Reveille; name its folder with --data", data.display());
    let answer = Progress::new(runtime).during(what, answer(runtime, data, order)).await?;
    console::line(&answer).context("cannot write the result")
}

/// Has the running server do it, or opens the data if there is none.
async fn answer(runtime: &Runtime, data: &Path, order: &Order) -> anyhow::Result<String> {
    if let Some(answer) = control::ask(data, order).await? {
        return Ok(answer);
    }
    let tasks = TaskSet::new(runtime);
    let opened = EmbeddedStore::open(runtime, &tasks, &store_path(data), Options::default()).await;
    let store = opened.map_err(|error| explain_open(error, data))?;
    let answer = control::obey(&store, order).await;
    store.close().await;
    answer
}
