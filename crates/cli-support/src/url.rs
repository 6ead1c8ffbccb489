//! URLs from an operator. A URL may contain a password, so the program never prints or logs a URL as the operator wrote
//! it.

use std::fmt;
use std::str::FromStr;

/// URL as the operator wrote it. The `Debug` output of this type does not contain the URL.
#[derive(Clone, PartialEq, Eq)]
pub struct Url(String);

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Url(…)")
    }
}

/// Accepts any text, because clap prints a rejected value in its error, and the value may contain a password.
impl FromStr for Url {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Url(text.to_owned()))
    }
}

impl Url {
    /// Returns the URL with its password.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
