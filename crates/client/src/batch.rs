//! Batches of schedules: the client sends requests and receives results on one connection at the same time.

use std::time::Duration;

use api::{BatchLine, NDJSON_CONTENT_TYPE, ScheduleRequest};
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::stream::{BoxStream, Stream, StreamExt as _, TryStreamExt as _, once, try_unfold};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};

use crate::{Client, Error, clock};

/// Longest time for which the client waits for the next bytes of the response. The server aborts a batch if the client
/// sends no data for 10 s.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Maximum size of a result line, in bytes. A result is a summary of a schedule, or a problem with up to 32 errors.
const LINE_BYTES_MAX: usize = 1 << 20;

impl Client {
    /// Creates many schedules, and returns their results in the order of the requests. [`BatchLine::line`] is the
    /// number of the request, from 1. The client polls `requests` as fast as the server accepts them. The server
    /// keeps results that the caller has not read yet. A batch has at most 1,000,000 requests.
    ///
    /// The client never repeats a batch. After an error, the server may have created schedules whose results are
    /// missing. If each request has an id, the caller can send the batch again. The server then reports
    /// `schedule_exists` for each schedule that it has already created.
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
                unreachable!("the function `whole` returns an error if the status is not a success status");
            }
            let results = Results { body: response.into_body(), read: BytesMut::new(), searched: 0 };
            Ok(try_unfold(results, async |mut results: Results| Ok(results.next().await?.map(|line| (line, results)))))
        };
        once(begin).try_flatten().boxed()
    }
}

/// Encodes a request as one line.
fn line(request: &ScheduleRequest) -> Bytes {
    let mut line = serde_json::to_vec(request).expect("every map in the wire types has string keys, as JSON requires");
    // A formatted payload may contain line ends. JSON allows unescaped line ends only between tokens, so spaces can
    // replace these line ends.
    for byte in line.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')) {
        *byte = b' ';
    }
    line.push(b'\n');
    line.into()
}

struct Results {
    body: Incoming,
    read: BytesMut,
    /// Number of bytes at the start of `read` that contain no line end.
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
                None => {
                    return Err(Error::Broken { source: "the response ends in the middle of a result line".into() });
                }
            }
        }
    }
}
