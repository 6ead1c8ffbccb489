"""Receiver of Reveille's callbacks that shares no code with Reveille.

llhttp (httptools) parses HTTP, and the Standard Webhooks project's own library verifies signatures
(docs/decisions/0072-test-with-a-receiver-in-python.md). Lost, doubled and
early callbacks are computed from this program's log and the list of acknowledged schedules.

    receiver.py listen --listen 127.0.0.1:9000 --secret-file FILE --log FILE
    receiver.py report --log FILE --acknowledged FILE

The log has one line for each callback, with these fields separated by blanks:

    arrival in microseconds since 1970 (its first byte)
    webhook-id
    reveille-attempt
    the nominal instant in milliseconds since 1970 (reveille-scheduled-at)
    1 if the signature is valid, otherwise 0
    reveille-schedule-id

A field that is missing or malformed in the callback is "-".
"""

import argparse
import asyncio
import datetime
import json
import pathlib
import signal
import sys
import time

import httptools
import standardwebhooks

BODY_BYTES_MAX = 16 * 1024 * 1024
HEAD_BYTES_MAX = 256 * 1024
FLUSH_EVERY_S = 0.02
ACCEPTED = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
REJECTED = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
MALFORMED = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Log:
    """Log file. Each line reaches the file within FLUSH_EVERY_S."""

    def __init__(self, path):
        self._file = open(path, "a", encoding="ascii", buffering=1 << 16)

    def write(self, line):
        self._file.write(line)

    def flush(self):
        self._file.flush()

    def close(self):
        self._file.close()


class Connection(asyncio.Protocol):
    """Connection that serves one request after the other."""

    def __init__(self, webhook, log, connections):
        self._webhook = webhook
        self._log = log
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._transport = None
        self._arrived_us = 0
        self._headers = {}
        self._head_bytes = 0
        self._body = []
        self._body_bytes = 0

    def connection_made(self, transport):
        self._transport = transport
        self._connections.add(transport)

    def connection_lost(self, _error):
        self._connections.discard(self._transport)

    def data_received(self, data):
        self._arrived_now_us = time.time_ns() // 1000
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.write(MALFORMED)
            self._transport.close()

    # The HTTP parser of `httptools` calls the following methods.

    def on_message_begin(self):
        self._arrived_us = self._arrived_now_us
        self._headers = {}
        self._head_bytes = 0
        self._body = []
        self._body_bytes = 0

    def on_header(self, name, value):
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._transport.abort()
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body):
        self._body_bytes += len(body)
        if self._body_bytes > BODY_BYTES_MAX:
            self._transport.abort()
            return
        self._body.append(body)

    def on_message_complete(self):
        verified = verify(self._webhook, b"".join(self._body), self._headers)
        self._log.write(line(self._arrived_us, self._headers, verified))
        self._transport.write(ACCEPTED if verified else REJECTED)
        if not self._parser.should_keep_alive():
            self._transport.close()


def verify(webhook, body, headers):
    try:
        webhook.verify(body, headers, json_parse=False)
    # A malformed body or signature causes exceptions in the decoders of `standardwebhooks`, and this library does not
    # catch them.
    except (standardwebhooks.WebhookVerificationError, ValueError):
        return False
    return True


def line(arrived_us, headers, verified):
    fields = [
        str(arrived_us),
        field(headers.get("webhook-id")),
        field(headers.get("reveille-attempt")),
        field(nominal_ms(headers.get("reveille-scheduled-at"))),
        "1" if verified else "0",
        field(headers.get("reveille-schedule-id")),
    ]
    return " ".join(fields) + "\n"


def field(text):
    fits = text and len(text) <= 256 and text.isascii() and text.isprintable() and " " not in text
    return text if fits else "-"


def nominal_ms(text):
    try:
        instant = datetime.datetime.fromisoformat((text or "").replace("Z", "+00:00"))
    except ValueError:
        return None
    if instant.tzinfo is None:
        return None
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return str((instant - epoch) // datetime.timedelta(milliseconds=1))


async def listen(host, port, webhook, log, ready=None, stop=None):
    """Serves until `stop` is set. Calls `ready` with the port."""
    loop = asyncio.get_running_loop()
    stop = stop or asyncio.Event()
    connections = set()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = await loop.create_server(lambda: Connection(webhook, log, connections), host, port, backlog=4096)
    if ready:
        ready(server.sockets[0].getsockname()[1])
    while not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), FLUSH_EVERY_S)
        except asyncio.TimeoutError:
            log.flush()
    server.close()
    for transport in list(connections):
        transport.close()
    log.close()


def judge(log_lines, acknowledged):
    """Computes the verdict for `acknowledged`, a set of ids of schedules or runs.

    lost: acknowledged, never arrived. doubled: arrivals of a run after its first one. early: first arrivals before the
    nominal instant. strange: arrivals without a run, or of a run that was not acknowledged. Only verified arrivals
    count in these categories; all others count as unverified.
    """
    verdict = dict.fromkeys(["arrived", "lost", "doubled", "early", "strange", "unverified"], 0)
    missing = set(acknowledged)
    first_us = {}
    nominals = {}
    for text in log_lines:
        fields = text.split()
        if len(fields) != 6:
            verdict["strange"] += 1
            continue
        arrived_us, run, _attempt, nominal, verified, schedule = fields
        if verified != "1":
            verdict["unverified"] += 1
        elif run in first_us:
            verdict["doubled"] += 1
            first_us[run] = min(first_us[run], int(arrived_us))
        elif nominal == "-" or not (run in acknowledged or schedule in acknowledged):
            verdict["strange"] += 1
        else:
            first_us[run] = int(arrived_us)
            nominals[run] = int(nominal)
            missing.discard(run)
            missing.discard(schedule)
    late_us = sorted(first_us[run] - nominals[run] * 1000 for run in first_us)
    verdict["arrived"] = len(first_us)
    verdict["lost"] = len(missing)
    verdict["early"] = sum(late < 0 for late in late_us)
    for name, share in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1)]:
        at = min(int(len(late_us) * share), len(late_us) - 1)
        verdict[f"lateness_{name}_us"] = late_us[at] if late_us else None
    return verdict


def report(arguments):
    acknowledged = set(arguments.acknowledged.read_text(encoding="ascii").split())
    with open(arguments.log, encoding="ascii") as log:
        verdict = judge(log, acknowledged)
    print(json.dumps(verdict))
    wrong = verdict["lost"] + verdict["early"] + verdict["strange"] + verdict["unverified"]
    return 1 if wrong or verdict["doubled"] > arguments.doubled_max else 0


def serve(arguments):
    host, _, port = arguments.listen.rpartition(":")
    try:
        webhook = standardwebhooks.Webhook(arguments.secret_file.read_text(encoding="ascii").strip())
        log = Log(arguments.log)
    except (OSError, ValueError, standardwebhooks.EmptyWebhookSecretError) as error:
        print(f"receiver.py: {error}", file=sys.stderr)
        return 2

    def ready(port):
        print(f"listening on http://{host}:{port}/", flush=True)

    asyncio.run(listen(host, int(port), webhook, log, ready))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("listen", help="receive callbacks and log them")
    command.add_argument("--listen", default="127.0.0.1:9000", help="address, default 127.0.0.1:9000")
    command.add_argument("--secret-file", type=pathlib.Path, required=True, help="file with whsec_ and base64")
    command.add_argument("--log", type=pathlib.Path, required=True, help="log file, appended to")
    command.set_defaults(run=serve)
    command = commands.add_parser("report", help="count lost, doubled and early callbacks; exit with 1 if any")
    command.add_argument("--log", type=pathlib.Path, required=True)
    command.add_argument("--acknowledged", type=pathlib.Path, required=True, help="file with one id per line")
    command.add_argument("--doubled-max", type=int, default=0, help="number of allowed duplicates, default 0")
    command.set_defaults(run=report)
    arguments = parser.parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
