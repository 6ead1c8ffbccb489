//! A disk that is nearly full: new schedules are refused in clear words, reads and callbacks go on, and when there is
//! room again, so do new schedules, without a restart.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::json;

use crate::client::{Answer, Client, one_shot};
use crate::receiver::Receiver;
use crate::server::{Server, serve};
use crate::{PATIENCE, now_millis};

/// Above the floor of 512 MiB that `serve` keeps free, with room for its own files.
const DISK_BYTES: u64 = 1 << 30;
/// Less than the floor is left beside it.
const BALLAST_BYTES: u64 = 600 << 20;

#[test]
fn a_disk_nearly_full_refuses_new_schedules_and_nothing_else_until_there_is_room_again() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let data = disk.join("data");
    let server = Server::start_where(on_small_disk(&disk, &data), |pid| seen_from_here(pid, &data));
    let receiver = Receiver::start();
    let mut client = server.client();
    let soon = |id: &str, millis| one_shot(id, now_millis() + millis, &receiver.url(), &json!(id));
    assert_eq!(client.create(&soon("before", 4_000)).status, 201);

    let ballast = seen_from_here(server.pid(), &disk.join("ballast"));
    let file = std::fs::File::create(&ballast).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BALLAST_BYTES).unwrap();
    let refused = until(&mut client, 507, |count| soon(&format!("full-{count}"), 3_600_000));
    let problem = refused.json();
    assert_eq!(problem["code"], "storage_full", "{problem}");
    let put = client.send("PUT", "/v1/schedules/before", &soon("before", 3_600_000).to_string()).unwrap();
    let cancelled = client.send("DELETE", "/v1/schedules/before", "").unwrap();
    assert_eq!((put.status, cancelled.status), (507, 507), "{} {}", put.body, cancelled.body);
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

/// A server with a disk of its own on `disk`, in a mount namespace of its own: it is gone when the server is.
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

/// A path of that process's namespace.
fn seen_from_here(pid: u32, path: &Path) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join("root").join(path.strip_prefix("/").expect("it is absolute"))
}

/// Asks again until the server, which looks at the disk once a second, answers so.
fn until(client: &mut Client, status: u16, request: impl Fn(u32) -> serde_json::Value) -> Answer {
    let deadline = Instant::now() + PATIENCE;
    for count in 0.. {
        let answer = client.create(&request(count));
        if answer.status == status {
            return answer;
        }
        assert!(matches!(answer.status, 201 | 507), "{} {}", answer.status, answer.body);
        assert!(Instant::now() < deadline, "never answered {status}, at last {}", answer.status);
    }
    unreachable!("there is no last number");
}
