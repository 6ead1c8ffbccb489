//! Many schedules at once: requests go out and results come back on one connection, neither waiting for the other's end.

use std::time::Duration;

use api::{BatchLine, NDJSON_CONTENT_TYPE, ScheduleRequest};
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::stream::{BoxStream, Stream, StreamExt as _, TryStreamExt as _, once, try_unfold};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};

use crate::{Client, Error, clock};

/// Without a byte of the answer; the server itself breaks off a batch that it hears nothing of after 10 s.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// A result is a summary, or a problem with up to 32 errors.
const LINE_BYTES_MAX: usize = 1 << 20;

impl Client {
    /// Makes many schedules, and tells what became of each, in their order: [`BatchLine::line`] is the place of the request,
    /// from 1. `requests` is asked for more as fast as the server takes them, so take the results meanwhile: the server
    /// stops reading for one who does not. At most 1,000,000 are taken.
    ///
    /// Nothing of it is sent again: after an error, what was not answered may have been made. Give each an id of your own, and
    /// those that were are answered with `schedule_exists` by another batch.
    pub fn create_many<S>(&self, requests: S) -> BoxStream<'static, Result<BatchLine<'static>, Error>>
    where
        S: Stream<Item = ScheduleRequest> + Send + 'static,
    {
        let client = self.clone();
        let begin = async move {
            let mut request = client.0.request(Method::POST, "/v1/schedules:batch")?;
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(NDJSON_CONTENT_TYPE));
            *request.body_mut() =
                StreamBody::new(requests.map(|request| Ok(Frame::data(line(&request))))).boxed_unsync();
            let response = clock::timeout(SILENCE_MAX, client.0.respond(request)).await;
            let response = response.unwrap_or(Err(Error::TimedOut { limit: SILENCE_MAX }))?;
            if !response.status().is_success() {
                client.0.whole(response).await?;
                unreachable!("an answer that is no success is an error");
            }
            let results = Results { body: response.into_body(), read: BytesMut::new(), searched: 0 };
            Ok(try_unfold(results, async |mut results: Results| Ok(results.next().await?.map(|line| (line, results)))))
        };
        once(begin).try_flatten().boxed()
    }
}

/// A request as one line.
fn line(request: &ScheduleRequest) -> Bytes {
    let mut line = serde_json::to_vec(request).expect("wire types have text keys");
    // A payload that was formatted for people has line ends, in JSON always between values.
    for byte in line.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')) {
        *byte = b' ';
    }
    line.push(b'\n');
    line.into()
}

struct Results {
    body: Incoming,
    read: BytesMut,
    /// Bytes of `read` that have no line's end.
    searched: usize,
}

impl Results {
    async fn next(&mut self) -> Result<Option<BatchLine<'static>>, Error> {
        loop {
            if let Some(length) = self.read[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.read.split_to(self.searched + length);
                self.read.advance(1);
                self.searched = 0;
                let line: BatchLine<'_> =
                    serde_json::from_slice(&line).map_err(|source| Error::Unreadable { source })?;
                return Ok(Some(line.into_owned()));
            }
            self.searched = self.read.len();
            if self.searched > LINE_BYTES_MAX {
                return Err(Error::TooLarge { bytes_max: LINE_BYTES_MAX });
            }
            let frame = clock::timeout(SILENCE_MAX, self.body.frame()).await;
            match frame.ok_or(Error::TimedOut { limit: SILENCE_MAX })? {
                Some(Ok(frame)) => self.read.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                Some(Err(error)) => return Err(Error::Broken { source: error.into() }),
                None if self.read.is_empty() => return Ok(None),
                None => return Err(Error::Broken { source: "the last line has no end".into() }),
            }
        }
    }
}
