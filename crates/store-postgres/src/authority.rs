//! Certificate authorities of the cluster. The crate stores their encrypted keys and does not interpret them.

use bytes::Bytes;
use postgres_client::tokio_postgres::Row;
use postgres_client::tokio_postgres::types::ToSql;
use store::StoreError;

use crate::engine::PostgresStore;
use crate::error::store_error;

const SELECT: &str = "select number, key, issues from reveille.authority order by number";
const ADD: &str = "insert into reveille.authority (number, key, issues) values ($1, $2, $3)
    on conflict do nothing returning number";
const REENCRYPT: &str = "update reveille.authority set key = $3 where number = $1 and key = $2 returning number";
const LET_ISSUE: &str = "update reveille.authority set issues = true where number = $1 and key = $2 returning number";
/// Drops nothing if the database has lost the authority ($1, $2), for example in a fail-over.
const DROP: &str = "delete from reveille.authority where number < $1
    and exists (select from reveille.authority where number = $1 and key = $2 and issues) returning number";

/// Certificate authority of the cluster, as the database stores it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredAuthority {
    /// Number of the authority, from 1. A later authority has a higher number.
    pub number: u32,
    /// Encrypted key.
    pub key: Bytes,
    /// True if members issue their certificates with this authority. They use the authority with the highest number.
    /// False if they only trust its certificates.
    pub issues: bool,
}

impl PostgresStore {
    /// Returns the authorities of the cluster, sorted by their numbers.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub async fn authorities(&self) -> Result<Vec<StoredAuthority>, StoreError> {
        let rows = self.inner.readers.query(SELECT, &[]).await.map_err(store_error)?;
        let stored = |row: &Row| StoredAuthority {
            number: row.get::<_, i32>(0).cast_unsigned(),
            key: row.get::<_, Vec<u8>>(1).into(),
            issues: row.get(2),
        };
        Ok(rows.iter().map(stored).collect())
    }

    /// Adds an authority. Returns false if another process has already added an authority with this number.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub async fn add_authority(&self, added: &StoredAuthority) -> Result<bool, StoreError> {
        self.change(ADD, &[&added.number.cast_signed(), &&*added.key, &added.issues]).await
    }

    /// Replaces the encrypted key of an authority. Returns false if another process has changed or dropped the authority.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub async fn reencrypt_authority(&self, of: &StoredAuthority, key: &[u8]) -> Result<bool, StoreError> {
        self.change(REENCRYPT, &[&of.number.cast_signed(), &&*of.key, &key]).await
    }

    /// Records that members issue their certificates with this authority. Returns false if another process has changed
    /// or dropped the authority.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub async fn let_authority_issue(&self, of: &StoredAuthority) -> Result<bool, StoreError> {
        self.change(LET_ISSUE, &[&of.number.cast_signed(), &&*of.key]).await
    }

    /// Drops the authorities with numbers below the number of `newest`. Returns false if there are none, or if another
    /// process has changed or dropped `newest`.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub async fn drop_authorities_before(&self, newest: &StoredAuthority) -> Result<bool, StoreError> {
        self.change(DROP, &[&newest.number.cast_signed(), &&*newest.key]).await
    }

    /// Runs a statement. Returns true if it changed a row.
    async fn change(&self, text: &'static str, parameters: &[&(dyn ToSql + Sync)]) -> Result<bool, StoreError> {
        let changed = self.inner.takers.query(text, parameters).await;
        Ok(!changed.map_err(store_error)?.is_empty())
    }
}
