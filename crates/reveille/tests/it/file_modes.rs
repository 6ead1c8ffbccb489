//! Tests of the modes of files and folders: only the user of the process has access to data, backups and keys.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::client::one_shot;
use crate::cluster::TestCluster;
use crate::now_millis;
use crate::process::failure;
use crate::server::{BINARY, Server, serve};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Applies `work` to a folder and to everything in it.
fn walk(folder: &Path, work: &mut impl FnMut(&Path)) {
    work(folder);
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), work);
        } else {
            work(&entry.path());
        }
    }
}

/// Asserts that all folders have the mode 0700 and all files the mode 0600.
#[track_caller]
fn assert_private(folder: &Path) {
    let (mut shared, mut count) = (Vec::new(), 0);
    walk(folder, &mut |path| {
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        if mode(path) != expected {
            shared.push(format!("{} {:o}", path.display(), mode(path)));
        }
        count += 1;
    });
    assert!(shared.is_empty(), "{shared:#?}");
    assert!(count > 3, "{} contains only {count} files", folder.display());
}

/// Gives all users access to a folder and everything in it, except to the key that Reveille then rejects.
fn share(folder: &Path) {
    walk(folder, &mut |path| {
        if !path.ends_with("store.key") {
            set_mode(path, if path.is_dir() { 0o777 } else { 0o666 });
        }
    });
}

/// Returns the same command with a umask that removes no permission.
fn without_umask(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"umask 0; exec "$0" "$@""#]).arg(command.get_program()).args(command.get_args());
    shell
}

fn reveille(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(arguments);
    without_umask(&command)
}

#[track_caller]
fn succeed(mut command: Command) -> String {
    let output = command.env("NO_COLOR", "1").output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    log
}

fn start_with_a_schedule(data: &Path) -> Server {
    let server = Server::start_by(without_umask(&serve(data)), data);
    let created = server.client().create(&one_shot("a", now_millis() + 86_400_000, "http://127.0.0.1:9/", &json!("x")));
    assert_eq!(created.status, 201, "{}", created.body);
    server
}

#[test]
fn data_folder_and_backup_are_private_whatever_the_umask() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [data, backup, restored, offline] = ["parent/data", "backups/1", "restored", "offline"].map(path);
    let server = start_with_a_schedule(Path::new(&data));
    succeed(reveille(&["backup", "--data", &data, "--to", &backup]));
    assert_private(Path::new(&data));
    assert_private(Path::new(&backup));
    assert_eq!(mode(&folder.path().join("parent")), 0o700);
    assert!(server.stop().success());

    // The server does not run, so the command itself writes the backup.
    succeed(reveille(&["backup", "--data", &data, "--to", &offline]));
    share(Path::new(&backup));
    succeed(reveille(&["restore", "--from", &backup, "--data", &restored]));
    for written in [&data, &offline, &restored] {
        assert_private(Path::new(written));
    }
}

#[test]
fn start_removes_the_access_of_other_users_to_an_older_folder() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    assert!(start_with_a_schedule(&data).stop().success());
    let foreign = data.join("notes.txt");
    fs::write(&foreign, "").unwrap();
    share(&data);

    let server = Server::start(&data);
    let log = server.log.text();
    assert!(log.contains("removed the access of other users") && log.contains("store/journal"), "{log}");
    assert_eq!(mode(&foreign), 0o666, "Reveille changes only files that it wrote");
    fs::remove_file(&foreign).unwrap();
    assert_private(&data);
    assert!(server.stop().success());

    let server = Server::start(&data);
    assert!(!server.log.text().contains("removed the access"), "{}", server.log.text());
    assert!(server.stop().success());
}

#[test]
fn folder_with_files_of_other_programs_is_rejected_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let [shared, empty, sticky] = ["shared", "empty", "sticky"].map(|name| folder.path().join(name));
    assert!(start_with_a_schedule(&data).stop().success());
    for (path, mode) in [(&shared, 0o755), (&empty, 0o755), (&sticky, 0o1777)] {
        fs::create_dir_all(path).unwrap();
        set_mode(path, mode);
    }
    fs::create_dir(shared.join("of-another-program")).unwrap();
    let backup = |to: &Path| {
        let mut command = Command::new(BINARY);
        command.args(["backup", "--data"]).arg(&data).arg("--to").arg(to);
        command
    };
    for mut command in [serve(&shared), backup(&shared), serve(&sticky), backup(&sticky)] {
        let message = failure(&mut command, 1);
        assert!(
            message.contains("other users have access to the folder") && message.contains("chmod 700"),
            "{message}"
        );
    }
    assert_eq!([mode(&shared), mode(&sticky)], [0o755, 0o1777]);

    let log = succeed(backup(&empty));
    assert!(log.contains("removed the access of other users"), "{log}");
    assert_private(&empty);
}

#[test]
fn start_fails_if_the_access_of_other_users_cannot_be_removed() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    set_mode(&data, 0o777);
    let nobody = Some(65_534);
    std::os::unix::fs::chown(&data, nobody, nobody).unwrap();
    // Without capabilities, root cannot change the mode of a folder of another user.
    let mut command = Command::new("setpriv");
    let start = serve(&data);
    command.args(["--bounding-set", "-all", "--inh-caps", "-all"]).arg(start.get_program()).args(start.get_args());
    let message = failure(&mut command, 1);
    assert!(message.contains("run `chmod 700") && message.contains("whose mode is 777"), "{message}");
    assert!(fs::read_dir(&data).unwrap().next().is_none(), "the process writes no file");
}

#[test]
fn folders_of_keys_members_and_imports_are_private() {
    let cluster = TestCluster::new();
    let (folder, key) = (tempfile::tempdir().unwrap(), cluster.key_folder().join("store.key"));
    let imported = folder.path().join("imported");
    let [key, to] = [&key, &imported].map(|path| path.to_str().unwrap());
    succeed(reveille(&["import", "--store", &cluster.url, "--store-key", key, "--data", to]));
    assert_private(&imported);
    let member = Server::start_where(without_umask(&cluster.serve("a")), |_| cluster.key_folder());
    assert_private(&cluster.key_folder());
    assert!(member.stop().success());
    share(&cluster.data_folder("a"));
    let member = cluster.start("a");
    for name in ["", "member.lock", "cluster.id", "server.url"] {
        assert_eq!(mode(&cluster.data_folder("a").join(name)) & 0o077, 0, "{name}");
    }
    assert!(member.stop().success());
}
