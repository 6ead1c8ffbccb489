use proptest::prelude::*;

use super::{NodePath, NodePathError, Sequence};

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

#[test]
fn path_parser_rejects_invalid_paths() {
    for (text, error) in [
        ("", NodePathError::Form),
        ("a", NodePathError::Form),
        ("/a/", NodePathError::Form),
        ("//", NodePathError::Form),
        ("/a//b", NodePathError::Part),
        ("/a/./b", NodePathError::Part),
        ("/a/..", NodePathError::Part),
        ("/a\0", NodePathError::Character('\0')),
        ("/a\u{85}b", NodePathError::Character('\u{85}')),
        ("/\u{f8ff}", NodePathError::Character('\u{f8ff}')),
    ] {
        assert_eq!(NodePath::new(text), Err(error), "{text:?}");
    }
    assert_eq!(NodePath::new(&format!("/{}", "x".repeat(NodePath::LEN_MAX))), Err(NodePathError::Form));
    assert!(NodePath::new(&format!("/{}", "x".repeat(NodePath::LEN_MAX - 1))).is_ok());
}

#[test]
fn path_returns_its_parent_and_its_name() {
    let root = NodePath::root();
    assert_eq!((root.parent(), root.name(), root.is_root()), (None, "", true));
    assert_eq!((path("/a").parent(), path("/a").name()), (Some(NodePath::root()), "a"));
    assert_eq!((path("/a/b c").parent(), path("/a/b c").name()), (Some(path("/a")), "b c"));
    assert_eq!(root.join("a/b").unwrap().join("c").unwrap(), path("/a/b/c"));
    assert!(root.join("/a").is_err() && root.join("").is_err());
}

#[test]
fn path_is_within_another_path_only_if_complete_parts_match() {
    assert!(path("/a/b").is_within(&path("/a")) && path("/a").is_within(&path("/a")));
    assert!(path("/a").is_within(&NodePath::root()) && NodePath::root().is_within(&NodePath::root()));
    assert!(!path("/ab").is_within(&path("/a")) && !path("/a").is_within(&path("/a/b")));
}

#[test]
fn sequence_parser_reads_the_number_at_the_end_of_a_node_name() {
    for (name, prefix, number) in [
        ("_c_6e1d-lock-0000000007", "lock-", Some(7)),
        ("lock-lock-0000000007", "lock-", Some(7)),
        ("lock--2147483648", "lock-", Some(i32::MIN)),
        ("lock--000000005", "lock-", Some(-5)),
        ("lock-7", "lock-", None),
        ("lock-+000000007", "lock-", None),
        ("latch-0000000007", "lock-", None),
    ] {
        assert_eq!(Sequence::after(name, prefix), number.map(Sequence), "{name}");
    }
    for (name, number) in [
        ("replica-10000000007", Some(7)),
        ("replica-0000000007", Some(7)),
        ("x-000000005", Some(-5)),
        ("x-2147483648", Some(i32::MIN)),
        ("short", None),
        ("é00000000", None),
        ("a-stranger", None),
    ] {
        assert_eq!(Sequence::of(name), number.map(Sequence), "{name}");
    }
    assert_eq!(Sequence(i32::MAX).next(), Sequence(i32::MIN));
}

proptest! {
    #[test]
    fn sequence_number_round_trips_through_node_names(number: i32, prefix in "[a-z]{1,8}-?") {
        let name = format!("{prefix}{}", Sequence(number));
        prop_assert_eq!(Sequence::after(&name, &prefix), Some(Sequence(number)));
        if number > -1_000_000_000 {
            prop_assert_eq!(Sequence::of(&name), Some(Sequence(number)));
        }
    }

    #[test]
    fn path_equals_parent_joined_with_name(text in "[a/.]{0,12}") {
        if let Ok(path) = NodePath::new(&text) {
            let again = path.parent().map_or_else(NodePath::root, |parent| parent.join(path.name()).unwrap());
            prop_assert_eq!(again, path);
        }
    }
}
