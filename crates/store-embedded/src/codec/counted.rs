//! Rows that contain the counts of final runs: one row for each tenant, facet and hour. The value of a row is the form
//! of [`stored::count`].

use domain::{Facet, Hour, TenantId};
use stored::{Malformed, Take};

pub(crate) const COUNTED: u8 = b'k';
pub(crate) const LEN: usize = 14;

fn number(facet: Facet) -> u8 {
    match facet {
        Facet::All => 0,
        Facet::Host => 1,
        Facet::Label => 2,
    }
}

/// Returns the key of the counts of an hour. The keys of a tenant's facet are in the order of the hours.
pub(crate) fn key(tenant: TenantId, facet: Facet, hour: Hour) -> [u8; LEN] {
    let mut key = [COUNTED; LEN];
    key[1..5].copy_from_slice(&tenant.0.to_be_bytes());
    key[5] = number(facet);
    // The encoding flips the sign bit, so that hours before 1970 sort first.
    key[6..].copy_from_slice(&(hour.0.cast_unsigned() ^ 1 << 63).to_be_bytes());
    key
}

pub(crate) fn parse(key: &[u8]) -> Result<(TenantId, Facet, Hour), Malformed> {
    let mut take = Take::new("the key of counts of runs", key);
    take.version(COUNTED)?;
    let tenant = TenantId(u32::from_be_bytes(take.array()?));
    let facet = take.u8()?;
    let facet = Facet::ALL.into_iter().find(|known| number(*known) == facet).ok_or_else(|| take.malformed())?;
    let hour = Hour((u64::from_be_bytes(take.array()?) ^ 1 << 63).cast_signed());
    take.end()?;
    Ok((tenant, facet, hour))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_the_hours() {
        let keys = [-2, -1, 0, 1, 500_000].map(|hour| key(TenantId(7), Facet::Label, Hour(hour)));
        assert!(keys.is_sorted());
        assert_eq!(parse(&keys[0]), Ok((TenantId(7), Facet::Label, Hour(-2))));
        assert!(parse(&keys[0][..LEN - 1]).is_err());
    }
}
