//! Session with a new server. It sends each request on a separate connection and returns the responses.
//!
//! The head of `requests.txt` describes the format of requests.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::schemathesis::Server;

const REQUESTS: &str = include_str!("requests.txt");
const WAIT_MAX: Duration = Duration::from_secs(30);

pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    key: String,
    headers: Vec<String>,
    body: String,
    /// Names of the values to capture, each with its place in the response: a JSON pointer or the name of a header.
    captures: Vec<(String, String)>,
    /// Text that the response must contain. The session repeats the request until the response contains this text.
    until: Option<String>,
    /// Number of the request's first line in the file.
    pub(super) line: usize,
}

pub(super) struct Response {
    pub(super) status: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
}

/// # Errors
/// Returns an error if `requests.txt` does not have the format that its head describes.
pub(super) fn requests() -> anyhow::Result<Vec<Request>> {
    let mut requests: Vec<Request> = Vec::new();
    for (number, line) in (1..).zip(REQUESTS.lines()) {
        let request =
            requests.last_mut().with_context(|| format!("line {number} of requests.txt is before the first request"));
        match line.split_once(' ').unwrap_or((line, "")) {
            ("" | "#", _) => {}
            (">", capture) => {
                let (name, pointer) = capture
                    .split_once(' ')
                    .with_context(|| format!("line {number} of requests.txt has no JSON pointer after the name"))?;
                request?.captures.push((name.to_owned(), pointer.to_owned()));
            }
            ("~", text) => request?.until = Some(text.to_owned()),
            ("|", body) => {
                let body_so_far = &mut request?.body;
                if !body_so_far.is_empty() {
                    body_so_far.push('\n');
                }
                body_so_far.push_str(body);
            }
            (name, _) if name.ends_with(':') => request?.headers.push(line.to_owned()),
            (method, rest) => {
                let (path, key) = rest.split_once(' ').unwrap_or((rest, ""));
                let [method, path, key] = [method, path, key].map(str::to_owned);
                let (headers, body, captures) = (Vec::new(), String::new(), Vec::new());
                requests.push(Request { method, path, key, headers, body, captures, until: None, line: number });
            }
        }
    }
    Ok(requests)
}

/// # Errors
/// Returns an error if the server does not start, if a response is incomplete, or if an expected response does not
/// arrive.
#[expect(clippy::disallowed_methods, reason = "a development command measures time with the clock of its machine")]
pub(super) fn responses(binary: &Path, requests: &[Request]) -> anyhow::Result<Vec<Response>> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Server::start(binary, &data, &["--no-receiver"])?;
    let address = server.url.trim_start_matches("http://").to_owned();
    let mut known = BTreeMap::new();
    known.insert("target".to_owned(), receive()?);
    for name in ["admin", "operator"] {
        known.insert(name.to_owned(), std::fs::read_to_string(data.join(format!("{name}.key")))?.trim().to_owned());
    }
    let mut responses = Vec::new();
    for request in requests {
        let context = || format!("{} {} (line {})", request.method, request.path, request.line);
        let bytes = request_bytes(request, &known).with_context(context)?;
        let start = Instant::now();
        let response = loop {
            let response = send(&address, &bytes).with_context(context)?;
            if request.until.as_ref().is_none_or(|text| response.body.contains(text)) {
                break response;
            }
            ensure!(
                start.elapsed() < WAIT_MAX,
                "{}: no response contained the expected text within {WAIT_MAX:?}; the last response: {}",
                context(),
                response.body
            );
            std::thread::sleep(Duration::from_millis(20));
        };
        for (name, pointer) in &request.captures {
            let body: Value = serde_json::from_str(&response.body).with_context(context)?;
            let header = response.headers.iter().find(|(name, _)| name == pointer).map(|(_, value)| value.as_str());
            let found = header.or_else(|| body.pointer(pointer)?.as_str());
            let found = found.with_context(|| format!("{}: no {pointer} in {}", context(), response.body))?;
            known.insert(name.clone(), found.to_owned());
        }
        responses.push(response);
        // The server orders listings by creation time in milliseconds. The session waits after each request, so that
        // no two creations have the same time.
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(responses)
}

/// Returns the request's bytes. The function replaces each placeholder in double braces by a captured value.
fn request_bytes(request: &Request, known: &BTreeMap<String, String>) -> anyhow::Result<Vec<u8>> {
    let body = expand(&request.body, known)?;
    let mut text = format!("{} {} HTTP/1.1\r\nhost: reveille\r\nconnection: close\r\n", request.method, request.path);
    if !request.key.is_empty() {
        let key = known.get(&request.key).map_or(&request.key, |key| key);
        text.push_str(&format!("authorization: Bearer {key}\r\n"));
    }
    for header in &request.headers {
        text.push_str(&format!("{header}\r\n"));
    }
    let has_length = request.headers.iter().any(|header| header.starts_with("transfer-encoding"));
    if !body.is_empty() && !has_length {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    Ok((expand(&text, known)? + "\r\n" + &body).into_bytes())
}

fn expand(text: &str, known: &BTreeMap<String, String>) -> anyhow::Result<String> {
    let mut done = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").context("a placeholder in requests.txt has no closing braces")?;
        done.push_str(before);
        match name.split_once('*') {
            Some((piece, times)) => done.push_str(&piece.repeat(times.parse()?)),
            None => done.push_str(known.get(name).with_context(|| format!("unknown placeholder: {name}"))?),
        }
        rest = after;
    }
    Ok(done + rest)
}

fn send(address: &str, request: &[u8]) -> anyhow::Result<Response> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(WAIT_MAX))?;
    stream.write_all(request)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let text = String::from_utf8(bytes).context("the response is not UTF-8")?;
    let (head, body) = text.split_once("\r\n\r\n").context("the response has no empty line after its headers")?;
    let (status, fields) = head.split_once("\r\n").unwrap_or((head, ""));
    let headers = fields.split("\r\n").filter_map(|field| field.split_once(": "));
    let headers: Vec<_> = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let is_chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if is_chunked { unchunked(body)? } else { body.to_owned() };
    Ok(Response { status: status.to_owned(), headers, body })
}

/// Returns the body without its chunk framing, because chunk boundaries vary.
fn unchunked(mut rest: &str) -> anyhow::Result<String> {
    let mut body = String::new();
    loop {
        let (length, after) =
            rest.split_once("\r\n").context("a chunk of the response has no complete line with its length")?;
        let length = usize::from_str_radix(length, 16)?;
        if length == 0 {
            return Ok(body);
        }
        body.push_str(after.get(..length).context("a chunk of the response is shorter than its declared length")?);
        rest = after
            .get(length..)
            .and_then(|after| after.strip_prefix("\r\n"))
            .context("a chunk of the response does not end with CRLF")?;
    }
}

/// Starts a target that responds with 500 if the path begins with `/fail`, and with 200 otherwise. Both builds use the
/// address of this target.
#[expect(clippy::disallowed_methods, reason = "the target is not part of the compared builds, so it may start threads")]
fn receive() -> anyhow::Result<String> {
    static ADDRESS: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    if let Some(address) = ADDRESS.get() {
        return Ok(address.clone());
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || -> std::io::Result<()> {
                let mut head = [0; 16 << 10];
                let length = stream.read(&mut head)?;
                let fails = head[..length].windows(6).take(8).any(|bytes| bytes == b" /fail");
                let status = if fails { "500 Internal Server Error" } else { "200 OK" };
                let response = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(response.as_bytes())?;
                stream.shutdown(std::net::Shutdown::Write)?;
                // The target reads the rest of the request, because unread data would reset the connection.
                stream.read_to_end(&mut Vec::new()).map(drop)
            });
        }
    });
    match ADDRESS.set(address.clone()) {
        Ok(()) => Ok(address),
        Err(_) => bail!("two sessions must not start the callback target at the same time"),
    }
}
