"""Sends a long batch with clients that write a whole request before they read the response.

REVEILLE_URL and REVEILLE_KEY name the server and a key. The optional argument is the number of lines.
"""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import requests

URL = os.environ["REVEILLE_URL"]
HEADERS = {"Authorization": f"Bearer {os.environ['REVEILLE_KEY']}", "Content-Type": "application/x-ndjson"}
ROUTE = "/v1/schedules:batch"
TIMEOUT_SECONDS = 600


def by_urllib(batch: Path) -> bytes:
    request = urllib.request.Request(URL + ROUTE, batch.read_bytes(), HEADERS)
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        return response.read()


def by_urllib_chunked(batch: Path) -> bytes:
    """Sends the file without a Content-Length."""
    connection = http.client.HTTPConnection(URL.removeprefix("http://"), timeout=TIMEOUT_SECONDS)
    with closing(connection), batch.open("rb") as body:
        connection.request("POST", ROUTE, body, {**HEADERS, "Transfer-Encoding": "chunked"}, encode_chunked=True)
        return connection.getresponse().read()


def by_requests(batch: Path) -> bytes:
    response = requests.post(URL + ROUTE, batch.read_bytes(), headers=HEADERS, timeout=TIMEOUT_SECONDS)
    response.raise_for_status()
    return response.content


def by_httpx(batch: Path) -> bytes:
    response = httpx.post(URL + ROUTE, content=batch.read_bytes(), headers=HEADERS, timeout=TIMEOUT_SECONDS)
    response.raise_for_status()
    return response.content


def by_wget(batch: Path) -> bytes:
    headers = [f"--header={name}: {value}" for name, value in HEADERS.items()]
    wget = ["wget", "--quiet", "--output-document=-", f"--post-file={batch}", "--tries=1", *headers, URL + ROUTE]
    return subprocess.run(wget, check=True, stdout=subprocess.PIPE, timeout=TIMEOUT_SECONDS).stdout


def by_java(batch: Path) -> bytes:
    source = Path(__file__).with_name("Batch.java")
    java = ["java", str(source), URL + ROUTE, os.environ["REVEILLE_KEY"], str(batch)]
    return subprocess.run(java, check=True, stdout=subprocess.PIPE, timeout=TIMEOUT_SECONDS).stdout


def by_curl(batch: Path, url: str = URL) -> bytes:
    headers = [argument for name, value in HEADERS.items() for argument in ("-H", f"{name}: {value}")]
    curl = ["curl", "-sS", "--fail", url + ROUTE, *headers, "--data-binary", f"@{batch}"]
    return subprocess.run(curl, check=True, stdout=subprocess.PIPE, timeout=TIMEOUT_SECONDS).stdout


def by_curl_and_nginx(batch: Path) -> bytes:
    """nginx limits bodies to 1 MiB by default, so the configuration also removes this limit."""
    nginx = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
    if nginx is None:
        raise SystemExit("nginx is missing; install it with: apt-get install nginx-light")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # The workers of nginx may have another user.
        kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        paths = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        server = f"listen 127.0.0.1:{port}; client_max_body_size 0; location / {{ proxy_pass {URL}; }}"
        configuration = Path(folder, "nginx.conf")
        configuration.write_text(
            f"daemon off; pid {folder}/pid; error_log stderr error; events {{}}"
            f"http {{ access_log off; {paths} server {{ {server} }} }}"
        )
        process = subprocess.Popen([nginx, "-c", configuration, "-e", "stderr"])
        try:
            wait_for(port)
            return by_curl(batch, f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait()


def wait_for(port: int) -> None:
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise SystemExit("nginx does not listen after 10 s")


def check(name: str, client: Callable[[Path], bytes], batch: Path, count: int) -> None:
    started = time.monotonic()
    results = [json.loads(line) for line in client(batch).splitlines()]
    statuses = [(result["line"], result["status"]) for result in results]
    if statuses != [(number, 201) for number in range(1, count + 1)]:
        raise SystemExit(f"{name}: {len(results)} results instead of {count}; the last is {results[-1:]}")
    print(f"{name}: {count} results in {time.monotonic() - started:.1f} s", flush=True)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        batch = Path(folder, "batch.ndjson")
        batch.write_text('{"at":"2035-01-02T03:04:05Z","target":{"http":{"url":"http://127.0.0.1:9/hook"}}}\n' * count)
        check("urllib", by_urllib, batch, count)
        check("urllib without a length", by_urllib_chunked, batch, count)
        check("requests", by_requests, batch, count)
        check("httpx", by_httpx, batch, count)
        check("wget", by_wget, batch, count)
        check("HttpURLConnection", by_java, batch, count)
        check("curl", by_curl, batch, count)
        check("curl through nginx", by_curl_and_nginx, batch, count)


main()
