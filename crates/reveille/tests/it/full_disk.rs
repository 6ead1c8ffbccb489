//! Test of a nearly full disk. The server rejects new schedules with a clear error, but continues to serve reads and to
//! send callbacks. When space is available again, the server accepts new schedules without a restart.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::json;

use crate::client::{Client, Response, one_shot};
use crate::receiver::Receiver;
use crate::server::{Server, serve};
use crate::{TIMEOUT, now_millis};

/// Size of the disk. The disk has space for the 512 MiB that `serve` requires as free space, and for the files of the
/// server.
const DISK_BYTES: u64 = 1 << 30;
/// Size of a file that leaves less free space than `serve` requires.
const BALLAST_BYTES: u64 = 600 << 20;

#[test]
fn server_on_a_nearly_full_disk_still_fires_existing_schedules() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let data = disk.join("data");
    let server = Server::start_where(on_small_disk(&disk, &data), |pid| seen_from_here(pid, &data));
    let receiver = Receiver::start();
    let mut client = server.client();
    let soon = |id: &str, millis| one_shot(id, now_millis() + millis, &receiver.url(), &json!(id));
    assert_eq!(client.create(&soon("before", 4_000)).status, 201);
    assert_eq!(client.create(&soon("cancelled", 3_600_000)).status, 201);

    let ballast = seen_from_here(server.pid(), &disk.join("ballast"));
    let file = std::fs::File::create(&ballast).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BALLAST_BYTES).unwrap();
    let rejected = until(&mut client, 507, |count| soon(&format!("full-{count}"), 3_600_000));
    let problem = rejected.json();
    assert_eq!(problem["code"], "storage_full", "{problem}");
    let put = client.send("PUT", "/v1/schedules/before", &soon("before", 3_600_000).to_string()).unwrap();
    let cancelled = client.send("DELETE", "/v1/schedules/cancelled", "").unwrap();
    assert_eq!((put.status, cancelled.status), (507, 200), "{} {}", put.body, cancelled.body);
    assert_eq!(client.get("/v1/schedules/before").status, 200);
    assert_eq!(client.get("/readyz").status, 200);
    receiver.wait(|hits| hits.iter().any(|hit| hit.schedule == "before"));

    std::fs::remove_file(&ballast).unwrap();
    drop(file);
    until(&mut client, 201, |count| soon(&format!("after-{count}"), 1));
    receiver.wait(|hits| hits.iter().any(|hit| hit.schedule.starts_with("after-")));
    let runs = client.get("/v1/schedules/before/runs").json();
    assert_eq!(runs["runs"][0]["state"], "succeeded", "{runs}");
}

/// Returns the command of a server with a separate file system at `disk`. The file system exists only in the mount
/// namespace of the server, so it disappears when the server ends.
fn on_small_disk(disk: &Path, data: &Path) -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let script = format!("mount -t tmpfs -o size={DISK_BYTES} tmpfs \"$0\" && exec \"$@\"");
    let server = serve(data);
    command.args(["--mount", "sh", "-c", &script]).arg(disk);
    command.arg(server.get_program()).args(server.get_args());
    command
}

/// Returns the path at which this process can open a file of another mount namespace. In the mount namespace of the
/// process `pid`, the file has the path `path`.
fn seen_from_here(pid: u32, path: &Path) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join("root").join(path.strip_prefix("/").expect("the path is absolute"))
}

/// Sends requests that create schedules, until a response has this status. One request is not enough, because the
/// server checks the free space on the disk only once a second.
fn until(client: &mut Client, status: u16, request: impl Fn(u32) -> serde_json::Value) -> Response {
    let deadline = Instant::now() + TIMEOUT;
    for count in 0.. {
        let response = client.create(&request(count));
        if response.status == status {
            return response;
        }
        assert!(matches!(response.status, 201 | 507), "{} {}", response.status, response.body);
        assert!(Instant::now() < deadline, "no response with status {status}, the last had {}", response.status);
    }
    unreachable!("the loop has no end");
}
