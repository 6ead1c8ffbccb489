//! Splitter of a request body into lines.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body::Body as _;

use crate::body::collect::{Piece, at_once, discard, incomplete, next_piece};
use crate::rejection::{Code, Rejected, reject};

pub(super) enum Line {
    Text(Bytes),
    /// Line that the splitter rejected before any parser read it.
    Rejected(Rejected),
}

/// Splits a body at line feeds. Buffers at most one line and one piece of the body.
pub(super) struct Lines {
    body: Body,
    /// Bytes that have arrived but that [`Lines::next`] has not returned yet.
    buffer: BytesMut,
    /// Number of bytes at the start of `buffer` that contain no line feed.
    searched: usize,
    line_bytes_max: usize,
    /// True while the splitter skips the rest of a line that is too long.
    is_skipping: bool,
    /// True if the body has ended or the splitter has stopped reading.
    is_body_done: bool,
    /// Rejection that the splitter returns as the last line, in place of the unread part of the body.
    last: Option<Rejected>,
    /// Problem code of the rejection that the caller last passed to [`Lines::stop`].
    stopped: Option<Code>,
    number: u64,
}

impl Lines {
    pub(super) fn new(body: Body, line_bytes_max: usize) -> Self {
        Lines {
            body,
            buffer: BytesMut::new(),
            searched: 0,
            line_bytes_max,
            is_skipping: false,
            is_body_done: false,
            last: None,
            stopped: None,
            number: 0,
        }
    }

    /// Returns the next complete line and its number. Counts and skips empty lines.
    pub(super) fn next(&mut self) -> Option<(u64, Line)> {
        loop {
            let line = match memchr::memchr(b'\n', &self.buffer[self.searched..]) {
                Some(at) => {
                    let mut line = self.buffer.split_to(self.searched + at + 1);
                    line.truncate(line.len() - 1);
                    line
                }
                None if self.is_body_done && !self.buffer.is_empty() => std::mem::take(&mut self.buffer),
                None => {
                    self.searched = self.buffer.len();
                    if self.is_body_done {
                        return self.take_last();
                    }
                    return self.reject_long();
                }
            };
            self.searched = 0;
            if std::mem::take(&mut self.is_skipping) {
                continue;
            }
            self.number += 1;
            if line.len() > self.line_bytes_max {
                return Some((self.number, Line::Rejected(self.too_long())));
            }
            if !line.trim_ascii().is_empty() {
                return Some((self.number, Line::Text(line.freeze())));
            }
        }
    }

    /// Rejects the incomplete line if it is already too long, and drops its bytes.
    fn reject_long(&mut self) -> Option<(u64, Line)> {
        if self.is_skipping {
            self.buffer.clear();
            self.searched = 0;
            return None;
        }
        if self.buffer.len() <= self.line_bytes_max {
            return None;
        }
        self.buffer.clear();
        self.searched = 0;
        self.is_skipping = true;
        self.number += 1;
        Some((self.number, Line::Rejected(self.too_long())))
    }

    fn too_long(&self) -> Rejected {
        let detail = format!("the line exceeds the limit of {} bytes; store large data elsewhere", self.line_bytes_max);
        reject(Code::BodyTooLarge, detail)
    }

    fn take_last(&mut self) -> Option<(u64, Line)> {
        let rejected = self.last.take()?;
        self.number += 1;
        Some((self.number, Line::Rejected(rejected)))
    }

    /// Stops reading. The splitter returns `rejected` as the last line, in place of the unread part of the body.
    pub(super) fn stop(&mut self, rejected: Rejected) {
        self.end();
        self.stopped = Some(rejected.code());
        self.last = Some(rejected);
    }

    /// Returns the reason for which the splitter stopped before the end of the body.
    pub(super) fn stopped(&self) -> Option<Code> {
        self.stopped
    }

    /// Stops reading. The splitter then returns no more lines.
    pub(super) fn end(&mut self) {
        self.buffer.clear();
        self.searched = 0;
        self.is_skipping = false;
        self.is_body_done = true;
        self.last = None;
    }

    /// Returns true if the splitter has returned every line.
    pub(super) fn is_at_end(&self) -> bool {
        self.is_body_done && self.buffer.is_empty() && self.last.is_none()
    }

    /// Waits for the next piece of the body. The function is cancel-safe: it loses no piece if its caller drops the
    /// future.
    pub(super) async fn fill(&mut self) {
        if !self.is_body_done {
            let piece = next_piece(&mut self.body).await;
            self.add(piece);
        }
    }

    /// Takes the next piece if it is available without waiting. Returns true if it took a piece.
    pub(super) async fn fill_at_once(&mut self) -> bool {
        let Some(piece) = at_once(&mut self.body).await else { return false };
        self.add(piece);
        true
    }

    /// Reads and discards the rest of the body with [`discard`].
    pub(super) async fn discard_rest(&mut self) {
        if !self.body.is_end_stream() {
            // The function ignores an incomplete body, because all lines already have their results.
            drop(discard(&mut self.body, 0, self.line_bytes_max).await);
        }
    }

    fn add(&mut self, piece: Option<Piece>) {
        match piece {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    self.buffer.extend_from_slice(&data);
                }
            }
            Some(Err(error)) => self.stop(incomplete(&error)),
            None => self.is_body_done = true,
        }
    }
}
