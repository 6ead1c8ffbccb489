"""Asks Reveille for a callback in one second, verifies the callback, and drops a duplicate of it.

    python callback.py [PORT]

REVEILLE_URL names the server, REVEILLE_KEY contains an API key, and REVEILLE_SIGNING_SECRET contains the signing
secret of the key's tenant.
"""

import collections
import datetime
import http.server
import os
import queue
import sys
import threading
import uuid

import requests
import standardwebhooks

WAIT_S = 20

Callback = collections.namedtuple("Callback", ["headers", "body", "payload"])


class Inbox:
    """Verifies callbacks, drops duplicates, and puts each other callback into a queue."""

    def __init__(self, secret):
        self._webhook = standardwebhooks.Webhook(secret)
        # This program keeps the ids of the callbacks in memory, so a restart loses the ids. A real service stores each
        # id in its database, in the transaction that does the callback's work. A crash then neither loses nor repeats
        # the work.
        self._ids = set()
        self.callbacks = queue.Queue()

    def receive(self, headers, body):
        """Returns the status of the response. Reveille repeats the callback later if the status is not 2xx."""
        try:
            # The signature covers the raw bytes of the body. The library also rejects a callback whose timestamp
            # differs from the machine's clock by more than five minutes.
            payload = self._webhook.verify(body, headers)
        # The library's decoders raise ValueError if a header or the body is malformed.
        except (standardwebhooks.WebhookVerificationError, ValueError) as error:
            print(f"rejected a request: {error}")
            return 401
        webhook_id = headers["webhook-id"]
        if webhook_id in self._ids:
            print(f"dropped a duplicate of {webhook_id}")
            return 204
        self._ids.add(webhook_id)
        print(f"received {webhook_id}: {payload}")
        self.callbacks.put(Callback(headers, body, payload))
        return 204


def start_receiver(inbox, port):
    """Starts a receiver that handles one request at a time, and returns its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            self.send_response(inbox.receive(headers, body))
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def create(schedule):
    """Creates the schedule, and returns the response. A second call with the same key creates no second schedule."""
    key = str(uuid.uuid4())
    headers = {"Authorization": f"Bearer {os.environ['REVEILLE_KEY']}", "Idempotency-Key": key}
    url = f"{os.environ['REVEILLE_URL']}/v1/schedules"
    # A client that receives no response repeats the request with the same key and the same body. This program always
    # repeats the request, to show that both responses are the same.
    first, second = (requests.post(url, json=schedule, headers=headers, timeout=WAIT_S) for _ in range(2))
    for response in (first, second):
        check(response.status_code == 201, f"the server creates the schedule: {response.text}")
    check(first.json() == second.json(), "the repeated request gets the first response")
    return first.json()


def deliver(target, callback, body):
    """Sends the callback to the receiver again, with this body. Returns the status."""
    headers = {name: value for name, value in callback.headers.items() if name.startswith("webhook-")}
    return requests.post(target, data=body, headers=headers, timeout=WAIT_S).status_code


def check(holds, promise):
    if not holds:
        sys.exit(f"failed: {promise}")


def main():
    inbox = Inbox(os.environ["REVEILLE_SIGNING_SECRET"])
    port = start_receiver(inbox, int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    target = f"http://127.0.0.1:{port}/hook"
    payload = {"order": str(uuid.uuid4())}
    at = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=1)
    schedule = create({"at": at.isoformat(), "target": {"http": {"url": target}}, "payload": payload})
    print(f"created {schedule['id']} for {schedule['next']}")

    try:
        callback = inbox.callbacks.get(timeout=WAIT_S)
    except queue.Empty:
        sys.exit(f"failed: no verified callback arrives within {WAIT_S} s")
    check(callback.payload == payload, "the callback has the payload of the schedule")
    check(callback.headers["reveille-schedule-id"] == schedule["id"], "the callback names the schedule")

    check(deliver(target, callback, callback.body) == 204, "the receiver accepts the duplicate")
    check(deliver(target, callback, callback.body + b" ") == 401, "the receiver rejects a changed body")
    check(inbox.callbacks.empty(), "the receiver drops the duplicate and the changed body")
    print("all checks hold")


if __name__ == "__main__":
    main()
