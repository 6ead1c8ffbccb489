//! Certificate authorities of the cluster. The crate stores their encrypted keys and does not interpret them.

use std::time::Duration;

use bytes::Bytes;
use postgres_client::tokio_postgres::Row;
use store::StoreError;

use crate::engine::PostgresStore;
use crate::error::store_error;

const SELECT: &str = "select number, key, extract(epoch from clock_timestamp() - created_at)::float8
    from reveille.authority order by number";
const ADD: &str =
    "insert into reveille.authority (number, key) values ($1, $2) on conflict do nothing returning number";
const REPLACE: &str = "update reveille.authority set key = $3 where number = $1 and key = $2 returning number";
const DROP: &str = "delete from reveille.authority where number < $1 returning number";

/// Certificate authority of the cluster, as the database stores it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredAuthority {
    /// Number of the authority. A later authority has a higher number.
    pub number: u64,
    /// Encrypted key.
    pub key: Bytes,
    /// Time since the creation of the authority, by the database's clock. Zero if the clock was set back.
    pub age: Duration,
}

impl PostgresStore {
    /// Returns the authorities of the cluster, sorted by their numbers.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub async fn authorities(&self) -> Result<Vec<StoredAuthority>, StoreError> {
        let rows = self.inner.readers.query(SELECT, &[]).await.map_err(store_error)?;
        let stored = |row: &Row| StoredAuthority {
            number: row.get::<_, i64>(0).cast_unsigned(),
            key: row.get::<_, Vec<u8>>(1).into(),
            age: Duration::try_from_secs_f64(row.get(2)).unwrap_or_default(),
        };
        Ok(rows.iter().map(stored).collect())
    }

    /// Adds an authority. Returns false if another process has already added an authority with this number.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub async fn add_authority(&self, number: u64, key: &[u8]) -> Result<bool, StoreError> {
        let added = self.inner.takers.query(ADD, &[&number.cast_signed(), &key]).await;
        Ok(!added.map_err(store_error)?.is_empty())
    }

    /// Replaces the encrypted key of an authority. Returns false if another process has changed or dropped the authority.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub async fn replace_authority_key(&self, number: u64, old: &[u8], new: &[u8]) -> Result<bool, StoreError> {
        let replaced = self.inner.takers.query(REPLACE, &[&number.cast_signed(), &old, &new]).await;
        Ok(!replaced.map_err(store_error)?.is_empty())
    }

    /// Drops the authorities with numbers below `number`.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub async fn drop_authorities_before(&self, number: u64) -> Result<(), StoreError> {
        let dropped = self.inner.takers.query(DROP, &[&number.cast_signed()]).await;
        dropped.map(|_| ()).map_err(store_error)
    }
}
