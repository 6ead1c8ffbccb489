//! Functions that read request bodies within limits of size and time.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame};

use crate::rejection::{Code, Rejected, reject};
use crate::state::AppState;

/// Limit of the bytes that [`discard`] reads, as a multiple of a body's size limit.
const DISCARD_FACTOR: usize = 32;

/// Reads the whole body of a request.
pub(crate) async fn collect(app: &AppState, headers: &HeaderMap, mut body: Body) -> Result<Bytes, Rejected> {
    let bytes_max = app.options.body_bytes_max;
    let content_length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let expects_continue = headers.contains_key(axum::http::header::EXPECT);
    if expects_continue && content_length.is_some_and(|bytes| bytes > bytes_max as u64) {
        return Err(too_large(bytes_max));
    }
    // Most bodies arrive in one piece directly after the head of the request. The server needs no copy and no timer for
    // such a body.
    match at_once(&mut body).await {
        Some(Some(Ok(frame))) if body.is_end_stream() && frame.is_data() => {
            let piece = frame.into_data().unwrap_or_default();
            if piece.len() > bytes_max { Err(too_large(bytes_max)) } else { Ok(piece) }
        }
        Some(None) => Ok(Bytes::new()),
        first => {
            let first = first.flatten();
            let rest = gather(first, &mut body, bytes_max);
            app.runtime.timeout(app.options.body_timeout, rest).await.unwrap_or_else(|| Err(timed_out(app)))
        }
    }
}

async fn gather(first: Option<Piece>, body: &mut Body, bytes_max: usize) -> Result<Bytes, Rejected> {
    let mut gathered = BytesMut::new();
    let mut next = first;
    loop {
        let frame = match next.take() {
            Some(piece) => Some(piece),
            None => next_piece(body).await,
        };
        let Some(frame) = frame else { return Ok(gathered.freeze()) };
        let Ok(piece) = frame.map_err(|error| incomplete(&error))?.into_data() else { continue };
        if gathered.len() + piece.len() > bytes_max {
            discard(body, piece.len(), bytes_max).await.map_err(|error| incomplete(&error))?;
            return Err(too_large(bytes_max));
        }
        gathered.extend_from_slice(&piece);
    }
}

/// Reads and discards the rest of a body, of which the caller has discarded `discarded` bytes. Stops when the number of
/// discarded bytes exceeds [`DISCARD_FACTOR`] times `bytes_max`.
///
/// Without this function, a client that still sends its body would receive a connection reset and might lose the
/// response.
///
/// # Errors
/// Returns an error if the connection fails before the end of the body.
pub(crate) async fn discard(body: &mut Body, mut discarded: usize, bytes_max: usize) -> Result<(), axum::Error> {
    while discarded <= bytes_max.saturating_mul(DISCARD_FACTOR) {
        let Some(frame) = next_piece(body).await else { break };
        discarded += frame?.data_ref().map_or(0, Bytes::len);
    }
    Ok(())
}

/// Waits for the next piece of a body. Returns `None` at the end of the body. The function is cancel-safe: it loses no
/// piece if its caller drops the future.
pub(crate) async fn next_piece(body: &mut Body) -> Option<Piece> {
    poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
}

pub(crate) type Piece = Result<Frame<Bytes>, axum::Error>;

/// Returns the next piece of a body if the piece is available without waiting. Returns `Some(None)` at the end of the
/// body.
///
/// The task of the HTTP connection reads a body only after a first poll of the body, so the first poll never returns a
/// piece. This function polls the body a second time after the task has run.
pub(crate) async fn at_once(body: &mut Body) -> Option<Option<Piece>> {
    let mut is_second_poll = false;
    poll_fn(|cx| match Pin::new(&mut *body).poll_frame(cx) {
        Poll::Ready(piece) => Poll::Ready(Some(piece)),
        Poll::Pending if is_second_poll => Poll::Ready(None),
        Poll::Pending => {
            is_second_poll = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

pub(crate) fn timed_out(app: &AppState) -> Rejected {
    let seconds = app.options.body_timeout.as_secs_f64();
    reject(Code::BodyTimeout, format!("the body did not arrive within {seconds} s; send it without pauses"))
}

pub(crate) fn incomplete(error: &axum::Error) -> Rejected {
    reject(Code::BodyBroken, format!("the body is incomplete: {error}; send the request again"))
}

fn too_large(bytes_max: usize) -> Rejected {
    let detail =
        format!("the body exceeds the limit of {bytes_max} bytes; store large data elsewhere and send a reference");
    reject(Code::BodyTooLarge, detail)
}
