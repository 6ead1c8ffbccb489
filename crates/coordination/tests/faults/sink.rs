//! Service outside of the tree. It rejects a write with a term below the greatest term that it has received.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;

/// Service that rejects writes with old terms. Processes in every network namespace can reach it through the path of
/// its socket.
pub(crate) struct Sink {
    folder: TempDir,
    highest: Arc<Mutex<u64>>,
}

impl Sink {
    pub(crate) fn start() -> Self {
        let sink = Sink { folder: tempfile::tempdir().unwrap(), highest: Arc::default() };
        let (listener, highest) = (UnixListener::bind(sink.path()).unwrap(), sink.highest.clone());
        // The thread accepts connections until the test process ends.
        thread::spawn(move || {
            for writer in listener.incoming().map_while(Result::ok) {
                let highest = highest.clone();
                thread::spawn(move || serve(writer, &highest));
            }
        });
        sink
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("sink")
    }

    pub(crate) fn highest(&self) -> u64 {
        *self.highest.lock().unwrap()
    }
}

fn serve(mut writer: UnixStream, highest: &Mutex<u64>) {
    let Ok(reader) = writer.try_clone() else { return };
    for line in BufReader::new(reader).lines().map_while(Result::ok) {
        let Ok(term) = line.parse::<u64>() else { return };
        let is_taken = {
            let mut highest = highest.lock().unwrap();
            let is_taken = term >= *highest;
            *highest = term.max(*highest);
            is_taken
        };
        if writer.write_all(if is_taken { b"taken\n" } else { b"refused\n" }).is_err() {
            return;
        }
    }
}
