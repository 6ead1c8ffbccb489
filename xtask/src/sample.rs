//! `cargo xtask sample`: draws comments, messages and test names at random. A reader who does not know the project
//! grades them.

use std::process::ExitCode;

use crate::prose::{self, Kind};
use crate::{stage, tidy};

/// Number of pieces of each kind in a sample.
const COMMENTS: usize = 60;
const MESSAGES: usize = 45;
const TEST_NAMES: usize = 40;

/// Minimum number of words of a piece. A shorter piece, such as a unit or an abbreviation, is not prose.
const WORDS_MIN: usize = 4;

/// Prints the sample that `seed` selects; the same checkout and seed give the same sample.
///
/// # Errors
/// Returns an error if git cannot list the files.
#[expect(clippy::print_stdout, reason = "this command writes the sample to standard output")]
pub(crate) fn run(seed: &str) -> anyhow::Result<ExitCode> {
    let mut pools: [Vec<(u64, String)>; 3] = Default::default();
    for file in tidy::read_files(&stage::root())? {
        if file.path().contains("/fixtures/") || file.path().contains("/testdata/") {
            continue;
        }
        let is_test = file.path().contains("/tests/") || file.path().ends_with("tests.rs");
        // Strings below the line `#[cfg(test)]` belong to the unit tests at the end of the file.
        let tests_start = file.text().lines().position(|line| line == "#[cfg(test)]").unwrap_or(usize::MAX);
        for prose in prose::of_file(file.path(), file.text()) {
            let words = prose.text.split_whitespace().filter(|word| word.starts_with(char::is_alphabetic)).count();
            let pool = match prose.kind {
                Kind::DocComment | Kind::Comment | Kind::Paragraph if words >= WORDS_MIN => &mut pools[0],
                Kind::Text if words >= WORDS_MIN && !is_test && prose.line < tests_start && is_message(&prose.text) => {
                    &mut pools[1]
                }
                Kind::TestName => &mut pools[2],
                _ => continue,
            };
            let place = format!("{}:{}", file.path(), prose.line);
            pool.push((hash(seed, &place), format!("{place}\n{}", prose.text)));
        }
    }
    for ((title, count), mut pool) in
        [("Comments", COMMENTS), ("Messages", MESSAGES), ("Test names", TEST_NAMES)].into_iter().zip(pools)
    {
        pool.sort();
        println!("# {title} ({count} of {})\n", pool.len());
        for (number, (_, text)) in pool.iter().take(count).enumerate() {
            println!("{}. {text}\n", number + 1);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns true for text that a person reads, and false for SQL, JSON and code.
fn is_message(text: &str) -> bool {
    let starts = ["select", "insert", "update", "delete", "create", "alter", "with", "begin", "drop", "set"];
    let first = text.split_whitespace().next().unwrap_or_default().to_lowercase();
    // Braces around a space are JSON or code. Other braces are placeholders of a format string.
    let mut braces = text.split('{').skip(1).map(|rest| rest.split('}').next().unwrap_or_default());
    !starts.contains(&first.as_str()) && !text.contains('=') && braces.all(|inside| !inside.contains(' '))
}

/// Returns the FNV-1a hash of `seed` and `place`, mixed by the finalizer of MurmurHash3. Without the finalizer,
/// neighbouring places would have similar hashes.
fn hash(seed: &str, place: &str) -> u64 {
    let bytes = seed.bytes().chain([0]).chain(place.bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampler_does_not_count_sql_and_json_as_messages() {
        assert!(is_message("cannot open the file {path}"));
        assert!(is_message("the file is not there"));
        assert!(!is_message("select a from b where c"));
        assert!(!is_message(r#"{"a": "some words of json"}"#));
    }

    #[test]
    fn one_changed_input_flips_about_half_of_the_hash_bits() {
        for (one, other) in [(hash("a", "b"), hash("a", "c")), (hash("a", "b"), hash("c", "b"))] {
            assert!((16..48).contains(&(one ^ other).count_ones()), "{one:x} {other:x}");
        }
    }
}
