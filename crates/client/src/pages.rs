//! Streams of items that the client fetches page by page.

use futures_util::stream::{BoxStream, StreamExt as _, TryStreamExt as _, iter, try_unfold};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

use crate::Error;
use crate::transport::Call;
use crate::{Client, api};

/// Characters that the client escapes in a path segment or a query value: all characters except the unreserved
/// characters of RFC 3986.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Escapes `text` for use as one path segment or one query value.
pub(crate) fn escape(text: &str) -> String {
    // URL parsers interpret `.` and `..` in a path as relative segments.
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
    /// Fetches one page of a list. If the list has query parameters, `path` already contains them.
    pub(crate) async fn page<P: Page>(&self, path: &str, limit: u16, token: Option<&str>) -> Result<P, Error> {
        let separator = match path.split_once('?') {
            Some((_, "")) => "",
            Some(_) => "&",
            None => "?",
        };
        let token = token.map(|token| format!("&page_token={}", escape(token))).unwrap_or_default();
        self.0.call(&Call::get(format!("{path}{separator}limit={limit}{token}"))).await?.read()
    }

    /// Streams the items of all pages. The client fetches a page when the caller has read all items of the previous
    /// page. The stream ends after the first error.
    pub(crate) fn pages<P: Page>(&self, path: String) -> BoxStream<'static, Result<P::Item, Error>> {
        const LIMIT: u16 = 100;
        let client = self.clone();
        // The state of the stream is `None` after the last page.
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
