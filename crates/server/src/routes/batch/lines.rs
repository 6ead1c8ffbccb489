//! A body as lines.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body::Body as _;

use crate::body::collect::{Piece, at_once, broken, discard, next_piece};
use crate::refusal::{Code, Refused, refuse};

pub(super) enum Line {
    Text(Bytes),
    /// It has no text that could be looked at.
    Refused(Refused),
}

/// Splits a body at line feeds. Holds at most one line and one piece of the body.
pub(super) struct Lines {
    body: Body,
    /// What has come and was not given out.
    held: BytesMut,
    /// `held` has no line feed before this.
    searched: usize,
    line_bytes_max: usize,
    /// The rest of a line that was refused for its length is still to come.
    is_skipping: bool,
    /// The body has ended, or will not be read further.
    is_body_done: bool,
    /// Stands for all that was not read, as the last line.
    last: Option<Refused>,
    number: u64,
}

impl Lines {
    pub(super) fn new(body: Body, line_bytes_max: usize) -> Self {
        Lines {
            body,
            held: BytesMut::new(),
            searched: 0,
            line_bytes_max,
            is_skipping: false,
            is_body_done: false,
            last: None,
            number: 0,
        }
    }

    /// The next line that is complete, and its number; empty ones are counted and passed over.
    pub(super) fn next(&mut self) -> Option<(u64, Line)> {
        loop {
            let line = match memchr::memchr(b'\n', &self.held[self.searched..]) {
                Some(at) => {
                    let mut line = self.held.split_to(self.searched + at + 1);
                    line.truncate(line.len() - 1);
                    line
                }
                None if self.is_body_done && !self.held.is_empty() => std::mem::take(&mut self.held),
                None => {
                    self.searched = self.held.len();
                    if self.is_body_done {
                        return self.take_last();
                    }
                    return self.refuse_long();
                }
            };
            self.searched = 0;
            if std::mem::take(&mut self.is_skipping) {
                continue;
            }
            self.number += 1;
            if line.len() > self.line_bytes_max {
                return Some((self.number, Line::Refused(self.too_long())));
            }
            if !line.trim_ascii().is_empty() {
                return Some((self.number, Line::Text(line.freeze())));
            }
        }
    }

    /// Drops what is held of a line that is too long already.
    fn refuse_long(&mut self) -> Option<(u64, Line)> {
        if self.is_skipping {
            self.held.clear();
            self.searched = 0;
            return None;
        }
        if self.held.len() <= self.line_bytes_max {
            return None;
        }
        self.held.clear();
        self.searched = 0;
        self.is_skipping = true;
        self.number += 1;
        Some((self.number, Line::Refused(self.too_long())))
    }

    fn too_long(&self) -> Refused {
        let detail = format!("a line has at most {} bytes; keep large data elsewhere", self.line_bytes_max);
        refuse(Code::BodyTooLarge, detail)
    }

    fn take_last(&mut self) -> Option<(u64, Line)> {
        let refused = self.last.take()?;
        self.number += 1;
        Some((self.number, Line::Refused(refused)))
    }

    /// Reads no further; what was not read is answered by `refused`, as one line.
    pub(super) fn stop(&mut self, refused: Refused) {
        self.end();
        self.last = Some(refused);
    }

    /// Reads no further, and gives out nothing more.
    pub(super) fn end(&mut self) {
        self.held.clear();
        self.searched = 0;
        self.is_skipping = false;
        self.is_body_done = true;
        self.last = None;
    }

    /// Every line has been given out.
    pub(super) fn is_at_end(&self) -> bool {
        self.is_body_done && self.held.is_empty() && self.last.is_none()
    }

    /// Waits for the next piece of the body. Cancel-safe: a piece is taken only when it is there.
    pub(super) async fn fill(&mut self) {
        if !self.is_body_done {
            let piece = next_piece(&mut self.body).await;
            self.keep(piece);
        }
    }

    /// Takes the next piece if it is there already; whether it was.
    pub(super) async fn fill_at_once(&mut self) -> bool {
        let Some(piece) = at_once(&mut self.body).await else { return false };
        self.keep(piece);
        true
    }

    /// Reads and discards the rest of the body, as [`discard`] does.
    pub(super) async fn discard_rest(&mut self) {
        if !self.body.is_end_stream() {
            // All lines have their answers already: a body that breaks off here changes none of them.
            drop(discard(&mut self.body, 0, self.line_bytes_max).await);
        }
    }

    fn keep(&mut self, piece: Option<Piece>) {
        match piece {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    self.held.extend_from_slice(&data);
                }
            }
            Some(Err(error)) => self.stop(broken(&error)),
            None => self.is_body_done = true,
        }
    }
}
