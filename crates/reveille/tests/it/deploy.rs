//! What comes with the binary to run it: the unit, the configuration, the container's file. What no test here does is start a
//! systemd, or build an image.

use std::process::{Command, Output};

use crate::server::BINARY;

const UNIT: &str = include_str!("../../../../deploy/reveille.service");
const CONFIGURATION: &str = include_str!("../../../../deploy/reveille.toml");
const COMPOSE: &str = include_str!("../../../../deploy/compose.yaml");
/// In tenths, as `systemd-analyze security` counts what a service may do that it need not: 100 is all.
const EXPOSURE_MAX: &str = "15";

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// The value of the last such line of the unit.
fn of_unit(key: &str) -> &'static str {
    let mut values = UNIT.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.next_back().unwrap_or_else(|| panic!("the unit says nothing of {key}"))
}

/// What `serve` would go by with this file.
fn shown(configuration: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("reveille.toml");
    std::fs::write(&file, configuration).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["serve", "--print-config", "--config"]).arg(&file);
    let output = command.output().expect("the binary starts");
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

/// The lines `KEY = VALUE` of a configuration, without what is said after them.
fn values(shown: &str) -> Vec<(String, String)> {
    let value = |line: &str| {
        let (key, value) = line.split_once(" = ")?;
        let value = value.split_once("  # ").map_or(value, |(value, _)| value);
        let is_key = key.bytes().all(|c| c.is_ascii_lowercase() || c == b'-');
        is_key.then(|| (key.to_owned(), value.to_owned()))
    };
    shown.lines().filter_map(value).collect()
}

fn seconds_of(key: &str) -> u64 {
    let defaults = values(&shown(""));
    let (_, value) = defaults.iter().find(|(known, _)| known == key).expect("there is such an option");
    seconds(value.trim_matches('"'))
}

fn seconds(text: &str) -> u64 {
    text.strip_suffix('s').and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{text} is not in seconds"))
}

#[test]
fn systemd_takes_every_line_of_the_unit_and_finds_little_that_the_service_may_do() {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("reveille.service");
    std::fs::write(&unit, UNIT.replace("/usr/local/bin/reveille", BINARY)).unwrap();
    let analyze = |arguments: &[&str]| {
        let output = Command::new("systemd-analyze").args(arguments).arg(&unit).output();
        output.expect("systemd-analyze is there; cargo xtask test installs it")
    };
    // What it does not know, it says and ignores.
    let verified = analyze(&["verify"]);
    assert_eq!((verified.status.code(), said(&verified).as_str()), (Some(0), ""));
    let judged = analyze(&["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE_MAX]);
    assert!(judged.status.success(), "{}", said(&judged));
}

#[test]
fn the_unit_and_the_configuration_beside_it_are_of_one_mind() {
    assert_eq!(of_unit("ExecStart"), "/usr/local/bin/reveille serve --config /etc/reveille/reveille.toml");
    let data = format!("data = \"/var/lib/{}\"", of_unit("StateDirectory"));
    assert!(CONFIGURATION.lines().any(|line| line == data), "{data}");
}

#[test]
fn whoever_stops_the_service_waits_for_as_long_as_a_stop_takes() {
    let takes = ["stop-notice", "request-drain", "drain"].map(seconds_of).into_iter().sum::<u64>();
    assert!(seconds(of_unit("TimeoutStopSec")) >= takes + 15, "{takes}");
    let compose = COMPOSE.lines().find_map(|line| line.trim().strip_prefix("stop_grace_period: "));
    assert!(seconds(compose.expect("compose says so, too")) >= takes + 15, "{takes}");
}

#[test]
fn the_configuration_that_comes_with_it_is_taken_and_tells_true_defaults() {
    let asks = values(&shown(CONFIGURATION));
    assert!(asks.contains(&("no-receiver".to_owned(), "true".to_owned())));
    let lines = || CONFIGURATION.lines().filter_map(|line| line.strip_prefix('#'));
    let offered: Vec<(String, String)> = lines().flat_map(values).collect();
    assert!(offered.len() >= 15, "{offered:?}");
    let uncommented: String = offered.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
    shown(&uncommented);
    let defaults = values(&shown(""));
    for (key, value) in &offered {
        let default = defaults.iter().find(|(known, _)| known == key);
        assert!(default.is_none_or(|(_, default)| default == value), "{key} is {default:?}, and not {value}");
    }
}
