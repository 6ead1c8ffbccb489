//! Encoding of the positions of a poller.

use domain::Timestamp;
use store::{Closed, Positions};
use stored::{Malformed, Put as _, Take};

/// Version of the rows of pollers that no owner has reopened. Earlier builds read only this version.
const NEVER_REOPENED: u8 = 1;
const REOPENED: u8 = 2;

/// Positions of a poller, the number of its changes [`store::Change::Reopen`], and the latest `closed` from which such a
/// change set the poller back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PollerState {
    pub positions: Positions,
    pub reopened: u32,
    pub reopened_from: Timestamp,
}

impl PollerState {
    pub(crate) fn closed(self) -> Closed {
        let PollerState { positions, reopened, reopened_from } = self;
        Closed { at: positions.closed, reopened, reopened_from }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = vec![if self.reopened == 0 { NEVER_REOPENED } else { REOPENED }];
        out.timestamp(self.positions.closed);
        out.timestamp(self.positions.done);
        if self.reopened > 0 {
            out.u32(self.reopened);
            out.timestamp(self.reopened_from);
        }
        out
    }

    /// # Errors
    /// Returns an error if `value` does not encode positions.
    pub(crate) fn decode(value: &[u8]) -> Result<Self, Malformed> {
        let mut take = Take::new("positions of a poller", value);
        let version = take.u8()?;
        let positions = Positions { closed: take.timestamp()?, done: take.timestamp()? };
        let (reopened, reopened_from) = match version {
            NEVER_REOPENED => (0, Timestamp::MIN),
            REOPENED => (take.u32()?, take.timestamp()?),
            _ => return Err(take.malformed()),
        };
        take.end()?;
        Ok(PollerState { positions, reopened, reopened_from })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_decode_to_an_equal_value() {
        let positions = Positions { closed: Timestamp::from_millis(9), done: Timestamp::from_millis(8) };
        for (reopened, reopened_from) in [(0, 0), (1, 77), (u32::MAX, i64::MAX)] {
            let state = PollerState { positions, reopened, reopened_from: Timestamp::from_millis(reopened_from) };
            assert_eq!(PollerState::decode(&state.encode()), Ok(state));
        }
        assert!(PollerState::decode(&[3; 29]).is_err(), "version 3 does not exist");
        assert!(PollerState::decode(&[1; 18]).is_err(), "the value has a byte too many");
    }
}
