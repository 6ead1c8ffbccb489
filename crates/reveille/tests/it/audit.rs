//! Test of the command `audit`.

use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::cli::run;
use crate::server::Server;

#[test]
fn audit_command_fails_until_an_audit_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let _server = Server::start(&data);
    let error = run(&data, &["audit"]).failed(1);
    assert!(error.contains("has not completed an audit"), "{error}");
    let mut ran = run(&data, &["audit"]);
    for _ in 0..60 {
        if ran.code == 0 {
            break;
        }
        thread::sleep(Duration::from_millis(500));
        ran = run(&data, &["audit"]);
    }
    let text = ran.done();
    assert!(text.starts_with("the audit of the time since 2") && text.contains(" ended at 2"), "{text}");
    let audit: Value = serde_json::from_str(&run(&data, &["audit", "--json"]).done()).unwrap();
    assert_eq!((&audit["unaccounted"], &audit["incomplete"]), (&0.into(), &false.into()), "{audit}");
}
