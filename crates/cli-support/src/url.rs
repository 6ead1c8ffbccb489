//! URLs that an operator gives. A URL may hold a password, so none is ever printed or logged as it was given.

use std::fmt;
use std::str::FromStr;

/// A URL as it was given; its `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Url(String);

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Url(…)")
    }
}

/// Takes any text: a refusal here would be printed with the text, which may hold a password.
impl FromStr for Url {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Url(text.to_owned()))
    }
}

impl Url {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
