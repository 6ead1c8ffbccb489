//! Control socket of a running server. The operator's commands `backup` and `check` send their requests to this socket.
//!
//! The socket is in the data folder, and only the owner of the folder can use the socket. Because of the socket,
//! `reveille backup` and `reveille check` also work while a server runs on the folder. A request is one line. The
//! response is also one line: `ok …` or `error …`.
//!
//! docs/decisions/0082-accept-commands-on-a-unix-socket.md gives the reasons for the design.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use runtime::{Runtime, TaskSet};
use store_embedded::{EmbeddedStore, Verified};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::data_folder::{make_private, store_path};

/// Maximum size of a request in bytes. The longest request contains the path of a folder.
const LINE_BYTES_MAX: u64 = 8 * 1024;

/// Request of an operator to an embedded store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    Check,
    /// Request for a backup to a folder that does not exist yet. The path is absolute.
    Backup(PathBuf),
}

impl Request {
    fn parse(line: &str) -> Option<Self> {
        match line.split_once(' ') {
            None if line == "check" => Some(Request::Check),
            Some(("backup", to)) if Path::new(to).is_absolute() => Some(Request::Backup(PathBuf::from(to))),
            _ => None,
        }
    }

    fn line(&self) -> anyhow::Result<String> {
        match self {
            Request::Check => Ok("check\n".to_owned()),
            Request::Backup(to) => {
                let text = to.to_str().filter(|to| !to.contains('\n'));
                let text = text.with_context(|| {
                    format!("invalid backup folder {}: its path must be UTF-8 text without line breaks", to.display())
                })?;
                Ok(format!("backup {text}\n"))
            }
        }
    }
}

fn socket(data: &Path) -> PathBuf {
    data.join("control")
}

/// Handles the requests to the control socket until the caller drops the sender of `stopped`. A separate thread handles
/// the requests, because a backup blocks the thread. If the socket cannot be created, the server runs without the
/// socket.
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
            let (runtime, data) = (runtime.clone(), data.to_owned());
            tasks.spawn_thread("control", async move {
                let requests = std::pin::pin!(serve(runtime, listener, &data, store));
                futures_util::future::select(requests, std::pin::pin!(stopped.changed())).await;
            });
        }
        Err(error) => {
            tracing::warn!(
                %error,
                path = %path.display(),
                "cannot create the control socket, which `reveille backup` needs: stop the server before you create a \
                 backup"
            );
        }
    }
}

/// Binds the socket, and first removes an existing socket. This process has locked the folder, so an existing socket
/// belongs to a process that has ended.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Handles the requests of the socket, one request at a time.
async fn serve(runtime: Runtime, listener: UnixListener, data: &Path, store: Arc<EmbeddedStore>) {
    const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            runtime.sleep(Duration::from_secs(1)).await;
            continue;
        };
        let mut line = String::new();
        let mut input = BufReader::new((&mut stream).take(LINE_BYTES_MAX));
        let read = runtime.timeout(REQUEST_TIMEOUT, input.read_line(&mut line)).await;
        let response = match (read, Request::parse(line.trim_end_matches('\n'))) {
            (Some(Ok(_)), Some(request)) => handle(&runtime, &store, data, &request).await,
            _ => Err(anyhow::anyhow!("invalid request to the control socket: send `check` or `backup /ABSOLUTE/PATH`")),
        };
        let response = match response {
            Ok(text) => format!("ok {text}\n"),
            Err(error) => format!("error {error:#}\n"),
        };
        if let Err(error) = stream.write_all(response.as_bytes()).await {
            tracing::warn!(%error, "client of the control socket disconnected before it read the response");
        }
    }
}

/// Sends the request to the server that runs on this folder. Returns `None` if no server runs on the folder.
///
/// # Errors
/// Returns an error if the server cannot carry out the request, or if the connection ends before the response.
pub(crate) async fn send(data: &Path, request: &Request) -> anyhow::Result<Option<String>> {
    let Ok(mut stream) = UnixStream::connect(socket(data)).await else { return Ok(None) };
    stream.write_all(request.line()?.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    match response.trim_end().split_once(' ') {
        Some(("ok", text)) => Ok(Some(text.to_owned())),
        Some(("error", text)) => bail!("{text}"),
        _ => bail!("the server closed the connection before it responded"),
    }
}

/// Carries out the request. Returns the result as one line.
///
/// # Errors
/// Returns an error if the backup or the check fails, or if the check finds damage.
pub(crate) async fn handle(
    runtime: &Runtime,
    store: &EmbeddedStore,
    data: &Path,
    request: &Request,
) -> anyhow::Result<String> {
    match request {
        Request::Backup(to) => {
            make_private(runtime, to).await?;
            store.backup(to).await?;
            let warning = match is_same_disk(&store_path(data), to) {
                true => {
                    "; the backup is on the same disk as the data and shares blocks with the data: copy the backup to \
                     another disk"
                }
                false => "",
            };
            // The key in `store.key` decrypts the secrets in the backup. The operator must not store this key beside
            // the backup.
            Ok(format!(
                "created the backup {}{warning}; keep a copy of the data folder's store.key, but not beside the backup",
                to.display()
            ))
        }
        Request::Check => {
            let verified = store.verify().await?;
            if !verified.damages.is_empty() {
                let damages = verified.damages.join("; ");
                bail!(
                    "the check of {} found damage: {damages}; copy the data folder to another place, then restore a \
                     backup",
                    read(&verified)
                )
            }
            Ok(no_damage(&verified))
        }
    }
}

fn read(verified: &Verified) -> String {
    format!("{} files of {} bytes", verified.files, verified.bytes)
}

/// Returns a text that describes a verification that found no damage.
pub(crate) fn no_damage(verified: &Verified) -> String {
    let [schedules, due, small] = verified.rows;
    format!("no damage in {}: {schedules} schedules, {due} due rows, {small} other rows", read(verified))
}

/// Returns `true` if the two folders are on the same file system. The failure of one disk can then destroy both.
fn is_same_disk(one: &Path, other: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    device(one).is_some_and(|found| Some(found) == device(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parser_accepts_only_serialized_control_requests() {
        for request in [Request::Check, Request::Backup(PathBuf::from("/var/backups/a b"))] {
            assert_eq!(Request::parse(request.line().unwrap().trim_end_matches('\n')), Some(request));
        }
        for line in ["", "backup", "backup relative/path", "checks", "check now"] {
            assert_eq!(Request::parse(line), None, "{line}");
        }
        assert!(Request::Backup(PathBuf::from("/a\nb")).line().is_err());
    }
}
