//! The bytes of a body, within a limit of size and time.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame};

use crate::refusal::{Code, Refused, refuse};
use crate::state::AppState;

/// [`discard`] reads up to this many times the limit of a body.
const DISCARD_FACTOR: usize = 32;

/// The whole of a body.
pub(crate) async fn collect(app: &AppState, headers: &HeaderMap, mut body: Body) -> Result<Bytes, Refused> {
    let bytes_max = app.options.body_bytes_max;
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let is_asking = headers.contains_key(axum::http::header::EXPECT);
    if is_asking && announced.is_some_and(|bytes| bytes > bytes_max as u64) {
        return Err(too_large(bytes_max));
    }
    // Most bodies come in one piece, right behind their head: no copy, and no timer.
    match at_once(&mut body).await {
        Some(Some(Ok(frame))) if body.is_end_stream() && frame.is_data() => {
            let piece = frame.into_data().unwrap_or_default();
            if piece.len() > bytes_max { Err(too_large(bytes_max)) } else { Ok(piece) }
        }
        Some(None) => Ok(Bytes::new()),
        first => {
            let first = first.flatten();
            let rest = gather(first, &mut body, bytes_max);
            app.runtime.timeout(app.options.body_timeout, rest).await.unwrap_or_else(|| Err(late(app)))
        }
    }
}

async fn gather(first: Option<Piece>, body: &mut Body, bytes_max: usize) -> Result<Bytes, Refused> {
    let mut gathered = BytesMut::new();
    let mut next = first;
    loop {
        let frame = match next.take() {
            Some(piece) => Some(piece),
            None => next_piece(body).await,
        };
        let Some(frame) = frame else { return Ok(gathered.freeze()) };
        let Ok(piece) = frame.map_err(|error| broken(&error))?.into_data() else { continue };
        if gathered.len() + piece.len() > bytes_max {
            discard(body, piece.len(), bytes_max).await.map_err(|error| broken(&error))?;
            return Err(too_large(bytes_max));
        }
        gathered.extend_from_slice(&piece);
    }
}

/// Reads and discards the rest of a body, of which `discarded` bytes are discarded already. Stops when more than
/// [`DISCARD_FACTOR`] times `bytes_max` bytes are discarded.
///
/// A client that is still sending when the server closes the connection finds it reset, and may lose the answer.
///
/// # Errors
/// If the body breaks off.
pub(crate) async fn discard(body: &mut Body, mut discarded: usize, bytes_max: usize) -> Result<(), axum::Error> {
    while discarded <= bytes_max.saturating_mul(DISCARD_FACTOR) {
        let Some(frame) = next_piece(body).await else { break };
        discarded += frame?.data_ref().map_or(0, Bytes::len);
    }
    Ok(())
}

/// Waits for the next piece of a body; `None` at its end. Cancel-safe: it takes a piece only when the piece is there.
pub(crate) async fn next_piece(body: &mut Body) -> Option<Piece> {
    poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
}

pub(crate) type Piece = Result<Frame<Bytes>, axum::Error>;

/// The next piece of a body if it is there, or as good as there; `Some(None)` at its end.
///
/// The connection reads a body only once it has been asked for it, so that the first look never sees anything. The
/// second look comes after the connection's own turn.
pub(crate) async fn at_once(body: &mut Body) -> Option<Option<Piece>> {
    let mut is_second_look = false;
    poll_fn(|cx| match Pin::new(&mut *body).poll_frame(cx) {
        Poll::Ready(piece) => Poll::Ready(Some(piece)),
        Poll::Pending if is_second_look => Poll::Ready(None),
        Poll::Pending => {
            is_second_look = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

pub(crate) fn late(app: &AppState) -> Refused {
    let seconds = app.options.body_timeout.as_secs_f64();
    refuse(Code::BodyTimeout, format!("the body was not there after {seconds} s; send it without pauses"))
}

pub(crate) fn broken(error: &axum::Error) -> Refused {
    refuse(Code::BodyBroken, format!("the body could not be read to its end: {error}"))
}

fn too_large(bytes_max: usize) -> Refused {
    let detail = format!("a body has at most {bytes_max} bytes; keep large data elsewhere and send a reference to it");
    refuse(Code::BodyTooLarge, detail)
}
