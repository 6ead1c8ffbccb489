//! Encoding of ZooKeeper's messages (Jute). Numbers are big-endian. A 32-bit length precedes a buffer, a text or a
//! list, and -1 stands for a missing value.

use bytes::{Buf as _, BufMut as _, Bytes};

/// Error that reports a message in an unexpected form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the server sent a malformed message")]
pub(crate) struct Malformed;

/// Appends values to a message.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn int(mut self, value: i32) -> Self {
        self.0.put_i32(value);
        self
    }

    pub(crate) fn long(mut self, value: i64) -> Self {
        self.0.put_i64(value);
        self
    }

    pub(crate) fn bool(mut self, value: bool) -> Self {
        self.0.put_u8(u8::from(value));
        self
    }

    /// # Panics
    /// Panics if `bytes` has 2 GiB or more. The callers limit all data to far smaller sizes.
    pub(crate) fn buffer(self, bytes: &[u8]) -> Self {
        let mut this = self.count(bytes.len());
        this.0.extend_from_slice(bytes);
        this
    }

    pub(crate) fn text(self, text: &str) -> Self {
        self.buffer(text.as_bytes())
    }

    pub(crate) fn texts<'a>(self, texts: impl ExactSizeIterator<Item = &'a str>) -> Self {
        let this = self.count(texts.len());
        texts.fold(this, Writer::text)
    }

    pub(crate) fn count(self, count: usize) -> Self {
        self.int(i32::try_from(count).expect("the callers limit all sizes to far less than 2 GiB"))
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Takes values from the front of a message.
pub(crate) struct Reader(Bytes);

impl Reader {
    pub(crate) fn new(message: Bytes) -> Self {
        Reader(message)
    }

    pub(crate) fn int(&mut self) -> Result<i32, Malformed> {
        self.0.try_get_i32().map_err(|_| Malformed)
    }

    pub(crate) fn long(&mut self) -> Result<i64, Malformed> {
        self.0.try_get_i64().map_err(|_| Malformed)
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        self.0.try_get_u8().map(|byte| byte != 0).map_err(|_| Malformed)
    }

    /// Takes a buffer. A missing buffer is an empty one.
    pub(crate) fn buffer(&mut self) -> Result<Bytes, Malformed> {
        let len = usize::try_from(self.int()?).unwrap_or(0);
        if len > self.0.len() { Err(Malformed) } else { Ok(self.0.split_to(len)) }
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        String::from_utf8(self.buffer()?.into()).map_err(|_| Malformed)
    }

    /// Takes a list. A missing list is an empty one.
    pub(crate) fn list<T>(&mut self, item: impl Fn(&mut Self) -> Result<T, Malformed>) -> Result<Vec<T>, Malformed> {
        let count = self.int()?.max(0);
        // The list grows with the items in the message, so a wrong count allocates no memory.
        (0..count).map(|_| item(self)).collect()
    }

    /// Returns the bytes that remain.
    pub(crate) fn rest(self) -> Bytes {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_returns_the_values_that_the_writer_wrote() {
        let message =
            Writer::default().int(-7).long(1 << 40).bool(true).buffer(b"ab").text("x/y").texts(["p", ""].into_iter());
        let mut reader = Reader::new(message.finish().into());
        assert_eq!((reader.int(), reader.long(), reader.bool()), (Ok(-7), Ok(1 << 40), Ok(true)));
        assert_eq!((reader.buffer(), reader.text()), (Ok(Bytes::from_static(b"ab")), Ok("x/y".to_owned())));
        assert_eq!(reader.list(Reader::text), Ok(vec!["p".to_owned(), String::new()]));
        assert_eq!(reader.rest(), Bytes::new());
    }

    #[test]
    fn reader_rejects_truncated_messages() {
        let message = Bytes::from(Writer::default().text("name").count(3).finish());
        for len in 0..message.len() {
            let mut reader = Reader::new(message.slice(..len));
            assert!(reader.text().is_err() || reader.list(Reader::int).is_err(), "{len} bytes");
        }
        let mut huge = Reader::new(Writer::default().int(i32::MAX).finish().into());
        assert_eq!(huge.list(Reader::long), Err(Malformed));
        let mut missing = Reader::new(Writer::default().int(-1).int(-1).finish().into());
        assert_eq!((missing.buffer(), missing.list(Reader::int)), (Ok(Bytes::new()), Ok(Vec::new())));
    }
}
