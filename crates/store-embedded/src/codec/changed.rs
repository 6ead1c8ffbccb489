//! Small row with the current state of a schedule and the key of its current spec.

use domain::Incarnation;
use stored::schedule::State;
use stored::{Malformed, Put as _, Take};

const VERSION: u8 = 1;

/// Current state of a schedule, which may differ from the state in the schedule's first row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Changed {
    pub state: State,
    /// Key of the row that contains the current spec.
    pub row: Incarnation,
}

impl Changed {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + State::LEN + 16);
        out.u8(VERSION);
        self.state.put(&mut out);
        out.u128(self.row.0);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut take = Take::new("a schedule's state", bytes);
        take.version(VERSION)?;
        let state = State::take(&mut take)?;
        let row = Incarnation(take.u128()?);
        take.end()?;
        Ok(Changed { state, row })
    }
}
