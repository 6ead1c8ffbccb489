//! Lists that come in pages, as streams.

use futures_util::stream::{BoxStream, StreamExt as _, TryStreamExt as _, iter, try_unfold};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

use crate::Error;
use crate::transport::Call;
use crate::{Client, api};

/// What needs no escape in a path's segment or a query's value (RFC 3986, "unreserved").
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// `text` as one segment of a path, or one value of a query, whatever is in it.
pub(crate) fn escape(text: &str) -> String {
    // These two would be taken for steps in the path.
    match text {
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        text => utf8_percent_encode(text, ESCAPED).to_string(),
    }
}

pub(crate) trait Page: DeserializeOwned + Send + 'static {
    type Item: Send + 'static;

    fn into_parts(self) -> (Vec<Self::Item>, Option<String>);
}

impl Page for api::RunPage {
    type Item = api::Run;

    fn into_parts(self) -> (Vec<api::Run>, Option<String>) {
        (self.runs, self.next_page_token)
    }
}

impl Page for api::SchedulePage {
    type Item = api::Schedule;

    fn into_parts(self) -> (Vec<api::Schedule>, Option<String>) {
        (self.schedules, self.next_page_token)
    }
}

impl Page for api::AuditPage {
    type Item = api::AuditEntry;

    fn into_parts(self) -> (Vec<api::AuditEntry>, Option<String>) {
        (self.entries, self.next_page_token)
    }
}

impl Client {
    /// `path` has its query already, if it needs one.
    pub(crate) async fn page<P: Page>(&self, path: &str, limit: u16, token: Option<&str>) -> Result<P, Error> {
        let separator = if path.contains('?') { '&' } else { '?' };
        let token = token.map(|token| format!("&page_token={}", escape(token))).unwrap_or_default();
        self.0.call(&Call::get(format!("{path}{separator}limit={limit}{token}"))).await?.read()
    }

    /// All that the pages have, each page asked for when the one before is used up. It ends with the first error.
    pub(crate) fn pages<P: Page>(&self, path: String) -> BoxStream<'static, Result<P::Item, Error>> {
        const LIMIT: u16 = 100;
        let client = self.clone();
        // `None` after the last page.
        try_unfold(Some(None::<String>), move |next| {
            let (client, path) = (client.clone(), path.clone());
            async move {
                let Some(token) = next else { return Ok(None) };
                let page: P = client.page(&path, LIMIT, token.as_deref()).await?;
                let (items, token) = page.into_parts();
                Ok(Some((iter(items.into_iter().map(Ok)), token.map(Some))))
            }
        })
        .try_flatten()
        .boxed()
    }
}
