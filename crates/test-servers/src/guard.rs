//! Guard that stops test servers and deletes their folder when the process that started the servers ends, for any
//! reason.

use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::Context;

/// Shell process that waits until its parent, the process that started the shell, ends. When the parent ends, the
/// kernel closes the pipe from the parent to the shell. The shell then runs `script` with the servers' folder as `$1`,
/// and deletes the folder. The guard does not use a parent-death signal, because the kernel sends this signal at the
/// end of the *thread* that started the server. The thread of a test ends before the test process.
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
        // The shell has a separate process group. If the terminal sends a signal to stop the tests, the shell therefore
        // does not receive the signal.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut shell = command.spawn().context("cannot start sh")?;
        let pipe = shell.stdin.take();
        Ok(Guard { shell, pipe })
    }

    pub(crate) fn stop(&mut self) {
        drop(self.pipe.take());
        drop(self.shell.wait());
    }
}
