//! Tests of the files in `deploy`: the systemd unit, the configuration and the compose file. These tests do not start
//! systemd and do not build an image.
//!
//! docs/decisions/0087-check-deployment-files-with-standard-tools.md gives the reasons for the design.

use std::net::IpAddr;
use std::process::{Command, Output};

use domain::egress::Network;

use crate::server::BINARY;

const UNIT: &str = include_str!("../../../../deploy/reveille.service");
const CONFIGURATION: &str = include_str!("../../../../deploy/reveille.toml");
const COMPOSE: &str = include_str!("../../../../deploy/compose.yaml");
/// Highest exposure of the unit that the test allows, on the scale of `systemd-analyze security --threshold`, from 0
/// (safe) to 100 (exposed).
const EXPOSURE_MAX: &str = "15";

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// Returns the value of this key in the unit. If several lines have the key, the last line counts.
fn unit_value(key: &str) -> &'static str {
    let mut values = UNIT.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.next_back().unwrap_or_else(|| panic!("the unit does not set {key}"))
}

/// Returns the networks that the unit denies to the service.
fn denied_networks() -> Vec<Network> {
    let lines = UNIT.lines().filter_map(|line| line.strip_prefix("IPAddressDeny="));
    // systemd.resource-control(5) defines the words.
    let networks = lines.flat_map(str::split_ascii_whitespace).flat_map(|word| match word {
        "any" => vec!["0.0.0.0/0", "::/0"],
        "localhost" => vec!["127.0.0.0/8", "::1/128"],
        "link-local" => vec!["169.254.0.0/16", "fe80::/64"],
        "multicast" => vec!["224.0.0.0/4", "ff00::/8"],
        network => vec![network],
    });
    networks.map(|network| network.parse().unwrap()).collect()
}

/// Returns the effective configuration that `serve` prints for this file.
fn shown(configuration: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("reveille.toml");
    std::fs::write(&file, configuration).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["serve", "--print-config", "--config"]).arg(&file);
    let output = command.output().expect("the binary starts");
    assert!(output.status.success(), "{}", text_of(&output));
    text_of(&output)
}

/// Returns the lines `KEY = VALUE` of a configuration, without their comments.
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
    let (_, value) = defaults.iter().find(|(known, _)| known == key).expect("the option exists");
    seconds(value.trim_matches('"'))
}

fn seconds(text: &str) -> u64 {
    text.strip_suffix('s').and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{text} is not in seconds"))
}

#[test]
fn systemd_accepts_the_service_unit() {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("reveille.service");
    std::fs::write(&unit, UNIT.replace("/usr/local/bin/reveille", BINARY)).unwrap();
    // systemd also checks that the man page of the unit exists.
    let manual = folder.path().join("man");
    assert!(Command::new(BINARY).args(["man", "--to"]).arg(manual.join("man1")).status().unwrap().success());
    let analyze = |arguments: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        let output = command.env("MANPATH", &manual).args(arguments).arg(&unit).output();
        output.expect("systemd-analyze is installed; cargo xtask test installs it")
    };
    // The output of `systemd-analyze verify` must be empty. For an unknown key, systemd only prints a warning and
    // ignores the key.
    let verified = analyze(&["verify"]);
    assert_eq!((verified.status.code(), text_of(&verified).as_str()), (Some(0), ""));
    let exposure = analyze(&["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE_MAX]);
    assert!(exposure.status.success(), "{}", text_of(&exposure));
}

#[test]
fn systemd_unit_denies_only_link_local_and_metadata_addresses() {
    let denied = denied_networks();
    let is_denied = |address: &str| {
        let address: IpAddr = address.parse().unwrap();
        denied.iter().any(|network| network.contains(address))
    };
    let metadata = ["169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200"];
    let metadata_ipv6 = ["fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fe80::1"];
    for address in metadata.iter().chain(&metadata_ipv6) {
        assert!(is_denied(address), "{address}");
    }
    // Public targets, targets that an operator can allow, and the database, members and DNS servers.
    let targets = ["1.1.1.1", "203.0.114.7", "2606:4700::1111", "127.0.0.53", "::1", "10.0.0.1", "172.16.0.1"];
    let others = ["192.168.1.1", "100.64.0.1", "fd00::1", "168.63.129.16"];
    for address in targets.iter().chain(&others) {
        assert!(!is_denied(address), "{address}");
    }
}

#[test]
fn systemd_unit_limits_the_memory_of_the_service() {
    let share = unit_value("MemoryMax").strip_suffix('%').and_then(|share| share.parse::<u8>().ok());
    assert!(share.is_some_and(|share| (50..100).contains(&share)), "the limit is a part of the machine's memory");
}

#[test]
fn systemd_unit_and_configuration_file_use_the_same_paths() {
    assert_eq!(unit_value("ExecStart"), "/usr/local/bin/reveille serve --config /etc/reveille/reveille.toml");
    let data = format!("data = \"/var/lib/{}\"", unit_value("StateDirectory"));
    assert!(CONFIGURATION.lines().any(|line| line == data), "{data}");
}

#[test]
fn systemd_and_compose_wait_long_enough_for_a_graceful_stop() {
    let takes = ["stop-notice", "request-drain", "drain"].map(seconds_of).into_iter().sum::<u64>();
    assert!(seconds(unit_value("TimeoutStopSec")) >= takes + 15, "{takes}");
    let compose = COMPOSE.lines().find_map(|line| line.trim().strip_prefix("stop_grace_period: "));
    assert!(seconds(compose.expect("the compose file has a stop_grace_period")) >= takes + 15, "{takes}");
}

#[test]
fn shipped_configuration_file_shows_the_default_values() {
    let effective = values(&shown(CONFIGURATION));
    assert!(effective.contains(&("no-receiver".to_owned(), "true".to_owned())));
    let lines = || CONFIGURATION.lines().filter_map(|line| line.strip_prefix('#'));
    let offered: Vec<(String, String)> = lines().flat_map(values).collect();
    assert!(offered.len() >= 15, "{offered:?}");
    let uncommented: String = offered.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
    shown(&uncommented);
    let defaults = values(&shown(""));
    for (key, value) in &offered {
        let default = defaults.iter().find(|(known, _)| known == key);
        assert!(default.is_none_or(|(_, default)| default == value), "{key} has the default {default:?}, not {value}");
    }
}
