//! A local socket on which a running server takes its operator's orders: to copy its data, and to check it.
//!
//! It lies in the data folder, for the folder's owner only, so that `reveille backup` and `reveille check` work
//! whether a server runs on that folder or not. One line is asked, one is answered: `ok …` or `error …`.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use runtime::{Runtime, TaskSet};
use store_embedded::EmbeddedStore;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// A folder's path is the longest thing that is asked.
const LINE_BYTES_MAX: u64 = 8 * 1024;

/// What an operator asks of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Check,
    /// To a folder that does not exist yet, its path absolute.
    Backup(PathBuf),
}

impl Order {
    fn parse(line: &str) -> Option<Self> {
        match line.split_once(' ') {
            None if line == "check" => Some(Order::Check),
            Some(("backup", to)) if Path::new(to).is_absolute() => Some(Order::Backup(PathBuf::from(to))),
            _ => None,
        }
    }

    fn line(&self) -> anyhow::Result<String> {
        match self {
            Order::Check => Ok("check\n".to_owned()),
            Order::Backup(to) => {
                let to = to.to_str().filter(|to| !to.contains('\n'));
                Ok(format!("backup {}\n", to.context("the folder's path is not text on one line")?))
            }
        }
    }
}

fn socket(data: &Path) -> PathBuf {
    data.join("control")
}

/// Takes orders, on a thread of its own because a copy blocks it, until the other end of `stopped` is dropped.
/// Without the socket the server runs all the same.
pub(crate) fn listen(
    runtime: &Runtime,
    tasks: &TaskSet,
    data: &Path,
    store: Arc<EmbeddedStore>,
    mut stopped: watch::Receiver<()>,
) {
    let path = socket(data);
    match bind(&path) {
        Ok(listener) => {
            let runtime = runtime.clone();
            tasks.spawn_thread("control", async move {
                let orders = std::pin::pin!(serve(runtime, listener, store));
                futures_util::future::select(orders, std::pin::pin!(stopped.changed())).await;
            });
        }
        Err(error) => tracing::warn!(%error, path = %path.display(), "no orders are taken: stop the server to back up"),
    }
}

/// The folder is locked by this process, so a socket that is left there is a dead one's.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// One order at a time.
async fn serve(runtime: Runtime, listener: UnixListener, store: Arc<EmbeddedStore>) {
    const LISTEN_MAX: Duration = Duration::from_secs(10);
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            runtime.sleep(Duration::from_secs(1)).await;
            continue;
        };
        let mut line = String::new();
        let mut input = BufReader::new((&mut stream).take(LINE_BYTES_MAX));
        let read = runtime.timeout(LISTEN_MAX, input.read_line(&mut line)).await;
        let answer = match (read, Order::parse(line.trim_end_matches('\n'))) {
            (Some(Ok(_)), Some(order)) => obey(&store, &order).await,
            _ => Err(anyhow::anyhow!("an order is `check` or `backup /a/folder`")),
        };
        let answer = match answer {
            Ok(text) => format!("ok {text}\n"),
            Err(error) => format!("error {error:#}\n"),
        };
        if let Err(error) = stream.write_all(answer.as_bytes()).await {
            tracing::warn!(%error, "who gave an order is gone");
        }
    }
}

/// Asks the server that runs on this folder. `None` if there is none.
///
/// # Errors
/// If it could not do what was asked.
pub(crate) async fn ask(data: &Path, order: &Order) -> anyhow::Result<Option<String>> {
    let Ok(mut stream) = UnixStream::connect(socket(data)).await else { return Ok(None) };
    stream.write_all(order.line()?.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    match answer.trim_end().split_once(' ') {
        Some(("ok", text)) => Ok(Some(text.to_owned())),
        Some(("error", text)) => bail!("{text}"),
        _ => bail!("the server broke off before it answered"),
    }
}

/// Does what was ordered, and tells the outcome on one line.
///
/// # Errors
/// If it could not be done, or the check found damage.
pub(crate) async fn obey(store: &EmbeddedStore, order: &Order) -> anyhow::Result<String> {
    match order {
        Order::Backup(to) => {
            store.backup(to).await?;
            // It holds no secrets but sealed ones, and the key is not to be where it is.
            Ok(format!("backed up to {}; keep a copy of the data folder's store.key elsewhere", to.display()))
        }
        Order::Check => {
            let verified = store.verify().await?;
            let [schedules, due, small] = verified.rows;
            let read = format!("{} files of {} bytes", verified.files, verified.bytes);
            if verified.damages.is_empty() {
                Ok(format!("no damage in {read}: {schedules} schedules, {due} due rows, {small} other rows"))
            } else {
                let damages = verified.damages.join("; ");
                bail!("damage in {read}: {damages}. Copy the data folder aside, then restore it from a backup")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_understood_as_it_was_meant_and_nothing_else_is() {
        for order in [Order::Check, Order::Backup(PathBuf::from("/var/backups/a b"))] {
            assert_eq!(Order::parse(order.line().unwrap().trim_end_matches('\n')), Some(order));
        }
        for line in ["", "backup", "backup relative/path", "checks", "check now"] {
            assert_eq!(Order::parse(line), None, "{line}");
        }
        assert!(Order::Backup(PathBuf::from("/a\nb")).line().is_err());
    }
}
