//! File descriptors of the process. Each connection of a client, each callback in flight and each idle connection to a
//! target uses one descriptor. The store uses further descriptors for its files.
//!
//! Invariant: connections cannot use up the descriptors that the store needs. A store that cannot open its files would
//! have to stop the process.
//!
//! docs/decisions/0194-replace-idle-connections-without-a-key.md gives the reasons for the design.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::service::Options;

/// Number of descriptors for everything except callbacks and the connections of clients: files of the store, the
/// database, other members, and logs.
const OTHERS: u64 = 1_024;

/// Raises the soft limit of open files to the hard limit. Returns the new limit.
pub(crate) fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(error) => {
            tracing::warn!(%error, ?current, "cannot raise the limit of open files to the hard limit");
            current.unwrap_or(u64::MAX)
        }
    }
}

/// Lowers the limits on connections if `open_files_max` descriptors are too few for the sum of these limits.
pub(crate) fn fit(options: &mut Options, open_files_max: u64) {
    let limits = [
        &mut options.server.connections_max,
        &mut options.scheduler.in_flight_max,
        &mut options.callback.idle_connections_max,
    ];
    let wanted = limits.iter().map(|limit| **limit as u64).sum();
    let available = open_files_max - OTHERS.min(open_files_max / 2);
    if wanted <= available {
        return;
    }
    for limit in limits {
        *limit = share(*limit, available, wanted);
    }
    tracing::warn!(
        open_files_max,
        connections_max = options.server.connections_max,
        in_flight_max = options.scheduler.in_flight_max,
        callback_idle_connections_max = options.callback.idle_connections_max,
        "the limit of open files is too low for the configured limits, so the process uses these lower limits; raise the \
         hard limit (ulimit -Hn, LimitNOFILE) to {}",
        wanted + OTHERS
    );
}

/// Returns `limit` times the ratio of `available` descriptors to `wanted` descriptors, where `wanted` is the sum of all
/// limits. Returns at least 1.
fn share(limit: usize, available: u64, wanted: u64) -> usize {
    let share = limit as u128 * u128::from(available) / u128::from(wanted.max(1));
    usize::try_from(share).unwrap_or(limit).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(open_files_max: u64) -> [usize; 3] {
        let mut options = Options::default();
        fit(&mut options, open_files_max);
        [options.server.connections_max, options.scheduler.in_flight_max, options.callback.idle_connections_max]
    }

    #[test]
    fn connection_limits_leave_enough_file_descriptors_for_the_store() {
        let defaults = limits(u64::MAX);
        for open_files_max in [16_u64, 128, 1_024, 4_096, 10_000, 13_311, 13_312, 65_536] {
            let fitted = limits(open_files_max);
            let sum: usize = fitted.iter().sum();
            let others = OTHERS.min(open_files_max / 2);
            assert!(sum as u64 <= open_files_max - others && fitted.iter().all(|limit| *limit > 0), "{open_files_max}");
            assert_eq!(fitted == defaults, open_files_max >= 13_312, "{open_files_max}: {fitted:?}");
        }
    }
}
