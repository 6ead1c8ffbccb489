use super::*;

fn command() -> Command {
    let mut command = Arguments::command();
    command.build();
    command
}

/// Reads a configuration file with this text. Returns the words of the command line for its entries, or the error text.
fn read(text: &str) -> Result<Vec<String>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("reveille.toml");
    std::fs::write(&path, text).unwrap();
    match File::read(&path, &command()) {
        Ok(file) => Ok(file.entries.into_values().flat_map(|entry| entry.words).collect()),
        Err(error) => Err(format!("{error:#}").replace(&path.display().to_string(), "FILE")),
    }
}

#[test]
fn configuration_keys_become_flags_with_the_same_values() {
    let text =
        "listen = '0.0.0.0:80'\nthreads = 0x10\nno-receiver = true\nroles = ['api']\ndrain = \"1m\"\nname = \"17\"\n";
    let words = ["--drain=1m", "--listen=0.0.0.0:80", "--name=17", "--no-receiver", "--roles=api", "--threads=16"];
    assert_eq!(read(text).unwrap(), words);
    assert_eq!(read("no-receiver = false\n\n# nothing\n").unwrap(), Vec::<String>::new());
}

#[test]
fn configuration_error_names_line_key_and_valid_values() {
    for (text, expected) in [
        ("\nin_flight_max = 3", "FILE:2: unknown option `in_flight_max`: did you mean `in-flight-max`?"),
        ("colour = 3", "FILE:1: unknown option `colour`: `reveille serve --help` lists the options"),
        ("config = 'x'", "FILE:1: unknown option `config`: `reveille serve --help` lists the options"),
        ("drain = '1m'\nin-flight-max = 0", "FILE:2: invalid value of `in-flight-max`: 0 is not in 1..=1000000"),
        ("drain = '1h'", "FILE:1: invalid value of `drain`: not between 0s and 10m"),
        (
            "drain = 5",
            "FILE:1: invalid value of `drain`: text is not a duration; use a form such as 30s, 5m, 1h30m, 500ms or \
             PT30S",
        ),
        ("roles = ['king']", "FILE:1: invalid value of `roles`: the value must be one of api, pollers"),
        ("no-receiver = 'yes'", "FILE:1: invalid value of `no-receiver`: the value must be true or false"),
        ("[listen]\nport = 3", "FILE:1: invalid value of `listen`: the value must be a string or a number"),
        ("listen = ['a', 'b']", "FILE:1: invalid value of `listen`: the value must be a string or a number"),
    ] {
        assert_eq!(read(text).unwrap_err(), expected, "{text}");
    }
    let twice = read("drain = '1s'\ndrain = '2s'").unwrap_err();
    assert!(twice.starts_with("FILE:2: invalid TOML"), "{twice}");
}

#[test]
fn configuration_error_never_contains_a_password() {
    for text in ["store = 'postgres://a:hunter2@b/c", "store = ['hunter2']", "store = 'x' hunter2", "stroe = 'hunter2'"]
    {
        let error = read(text).unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn shown_configuration_redacts_passwords_in_urls() {
    for (url, shown) in [
        ("postgres://me:hunter2@db:5432/reveille", "postgres://me:***@db:5432/reveille"),
        ("postgres://me@db/reveille?sslmode=require", "postgres://me@db/reveille?sslmode=require"),
        ("postgres://me:hun@ter/2@db/reveille", "postgres://me:***@db/reveille"),
        ("postgres://me:hun?ter2@db/reveille", "***"),
        (
            "postgres://db/reveille?password=hunter2&sslmode=require",
            "postgres://db/reveille?password=***&sslmode=require",
        ),
        ("host=db password=hunter2", "***"),
    ] {
        assert_eq!(without_password(url), shown);
    }
}

#[test]
fn every_option_has_a_help_text_and_an_environment_variable() {
    for (long, option) in options(&command()) {
        let variable = format!("REVEILLE_{}", long.replace('-', "_").to_uppercase());
        assert_eq!(option.get_env().and_then(|name| name.to_str()), Some(variable.as_str()), "--{long}");
        assert!(option.get_help().is_some(), "--{long}");
    }
}

#[test]
fn shown_configuration_is_a_valid_configuration_file() {
    let command = command();
    let words = ["reveille", "serve", "--print-config", "--name", "a \"b\"\\\t", "--roles", "api", "--drain", "7s"];
    let matches = command.clone().get_matches_from(words);
    let place = BTreeMap::from([("drain".to_owned(), "reveille.toml:3".to_owned())]);
    let shown = show(&command, &matches, &place);
    for line in [
        r#"listen = "127.0.0.1:8080"  # default"#,
        r#"name = "a \"b\"\\\u0009"  # flag"#,
        r#"roles = ["api"]  # flag"#,
        r#"drain = "7s"  # reveille.toml:3"#,
        "no-receiver = false  # default",
        "# store is not set",
        "in-flight-max = 4096  # default",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} is not in\n{shown}");
    }
    let words = read(&shown).unwrap();
    assert!(words.contains(&"--name=a \"b\"\\\t".to_owned()), "{words:?}");
}

/// Returns the values just before and just after the bound, in the unit of the bound.
fn neighbours(bound: &str) -> [String; 2] {
    let digits = bound.find(|c: char| !c.is_ascii_digit()).unwrap_or(bound.len());
    let (number, unit) = bound.split_at(digits);
    let number: i64 = number.parse().unwrap();
    [number - 1, number + 1].map(|number| format!("{number}{unit}"))
}

#[test]
fn every_number_option_enforces_the_bounds_in_its_help() {
    let command = command();
    let is_taken = |key: &str, value: &str| check(&command, key, &[format!("--{key}={value}")]).is_ok();
    let mut bounded = 0;
    for (long, option) in options(&command) {
        let help = option.get_help().unwrap().to_string();
        let bounds = help.split_once('[').and_then(|(_, rest)| rest.split_once(']')?.0.split_once(" to "));
        let Some((least, most)) = bounds else {
            assert!(!is_taken(long, "3") || is_taken(long, "three"), "--{long} shows no bounds");
            continue;
        };
        bounded += 1;
        assert!(is_taken(long, least) && is_taken(long, most), "--{long}");
        let beyond = [&neighbours(least)[0], &neighbours(most)[1]];
        assert!(beyond.iter().all(|value| !is_taken(long, value)), "--{long} accepts one of {beyond:?}");
    }
    assert!(bounded >= 20, "{bounded}");
}

#[test]
fn unknown_reveille_environment_variable_causes_a_warning() {
    let warning = |name: &str| unread_variable(&command(), name);
    for name in
        ["PATH", "REVEILLE_DATA", "REVEILLE_KEY", "REVEILLE_SERVICE_HOST", "REVEILLE_PORT_8080_TCP", "REVEILLE_TERM"]
    {
        assert_eq!(warning(name), None, "{name}");
    }
    let misspelt = warning("REVEILLE_LISTN").unwrap();
    assert_eq!(misspelt, "no option reads the environment variable REVEILLE_LISTN; did you mean REVEILLE_LISTEN?");
    assert!(warning("REVEILLE_COLOUR_OF_LOGS").unwrap().contains("reveille help COMMAND"));
}
