//! Command `reveille bench load-runs`: opens the store that the benchmark fills with runs.

use anyhow::{Context, ensure};
use bench::{LoadRunsArguments, load_runs as load};
use runtime::{Runtime, TaskSet};
use store_embedded::EmbeddedStore;
use store_postgres::PostgresStore;

use crate::data_folder::store_path;

/// # Errors
/// Returns an error if the store cannot be opened, or if it rejects a run.
pub(crate) async fn load_runs(runtime: &Runtime, arguments: &LoadRunsArguments) -> anyhow::Result<()> {
    let tasks = TaskSet::new(runtime);
    let loaded = if let Some(url) = &arguments.store {
        let opened = PostgresStore::open(runtime, &tasks, url.as_str(), store_postgres::Options::default()).await;
        let store = opened.context("cannot open the store")?;
        let loaded = load(runtime, &store, arguments.count).await;
        store.close();
        loaded
    } else {
        let path = store_path(&arguments.server_data());
        ensure!(path.exists(), "{} does not exist: run `reveille bench create` in this folder first", path.display());
        let opened = EmbeddedStore::open(runtime, &tasks, &path, store_embedded::Options::default()).await;
        let store = opened.context("cannot open the store; stop the server that uses it")?;
        let loaded = load(runtime, &store, arguments.count).await;
        store.close().await;
        loaded
    };
    tasks.join().await;
    loaded
}
