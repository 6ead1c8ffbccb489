//! Who ends servers and deletes their folder when the process that started them ends, however that came.

use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::Context;

/// A shell that waits for this process's end: the pipe to it is then closed. It runs `script` with the folder as `$1`, and deletes the
/// folder. (A parent-death signal would come when the *thread* that started a server ends, as those of tests do.)
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
    pipe: Option<ChildStdin>,
}

impl Guard {
    pub(crate) fn start(folder: &Path, script: &str) -> anyhow::Result<Guard> {
        use std::os::unix::process::CommandExt;

        let script = format!("read -r _\n{script}\nrm -rf \"$1\" || {{ sleep 1; rm -rf \"$1\"; }}");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "guard"]).arg(folder).current_dir("/");
        // A group of its own: what ends the tests from a terminal must not end it.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut shell = command.spawn().context("cannot start sh")?;
        let pipe = shell.stdin.take();
        Ok(Guard { shell, pipe })
    }

    pub(crate) fn end(&mut self) {
        drop(self.pipe.take());
        drop(self.shell.wait());
    }
}
