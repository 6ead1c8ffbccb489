"""Asks Reveille for a callback in one second, verifies the callback, and drops a duplicate of it.

    python callback.py [PORT]

REVEILLE_URL names the server, REVEILLE_KEY contains an API key, and REVEILLE_SIGNING_SECRET contains the signing
secret of the key's tenant. This program uses asyncio: httpx is the client, and Starlette with uvicorn is the receiver.
The endpoint works the same way in FastAPI.
"""

import asyncio
import collections
import datetime
import os
import socket
import sys
import uuid

import httpx
import standardwebhooks
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

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
        self.callbacks = asyncio.Queue()

    async def endpoint(self, request):
        # The signature covers the raw bytes of the body, so a parsed body such as `request.json()` does not suffice.
        return Response(status_code=self.receive(request.headers, await request.body()))

    def receive(self, headers, body):
        """Returns the status of the response. Reveille repeats the callback later if the status is not 2xx."""
        try:
            # The library verifies the signature. It also rejects a callback whose timestamp differs from the machine's
            # clock by more than five minutes.
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
        self.callbacks.put_nowait(Callback(headers, body, payload))
        return 204


async def create(client, schedule):
    """Creates the schedule, and returns the response. A second request with the same key creates no second schedule."""
    headers = {"Authorization": f"Bearer {os.environ['REVEILLE_KEY']}", "Idempotency-Key": str(uuid.uuid4())}
    url = f"{os.environ['REVEILLE_URL']}/v1/schedules"
    # A client that receives no response repeats the request with the same key and the same body. This program always
    # repeats the request, to show that both responses are the same.
    first, second = [await client.post(url, json=schedule, headers=headers) for _ in range(2)]
    for response in (first, second):
        check(response.status_code == 201, f"the server creates the schedule: {response.text}")
    check(first.json() == second.json(), "the repeated request gets the first response")
    return first.json()


async def deliver(client, target, callback, body):
    """Sends the callback to the receiver again, with this body. Returns the status."""
    headers = {name: value for name, value in callback.headers.items() if name.startswith("webhook-")}
    return (await client.post(target, content=body, headers=headers)).status_code


def check(holds, promise):
    if not holds:
        sys.exit(f"failed: {promise}")


async def run(client, inbox, target):
    payload = {"order": str(uuid.uuid4())}
    at = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=1)
    schedule = await create(
        client, {"at": at.isoformat(), "target": {"http": {"url": target}}, "payload": payload}
    )
    print(f"created {schedule['id']} for {schedule['next']}")

    try:
        callback = await asyncio.wait_for(inbox.callbacks.get(), WAIT_S)
    except asyncio.TimeoutError:
        sys.exit(f"failed: no verified callback arrives within {WAIT_S} s")
    check(callback.payload == payload, "the callback has the payload of the schedule")
    check(callback.headers["reveille-schedule-id"] == schedule["id"], "the callback names the schedule")

    check(await deliver(client, target, callback, callback.body) == 204, "the receiver accepts the duplicate")
    check(await deliver(client, target, callback, callback.body + b" ") == 401, "the receiver rejects a changed body")
    check(inbox.callbacks.empty(), "the receiver drops the duplicate and the changed body")
    print("all checks hold")


async def main():
    inbox = Inbox(os.environ["REVEILLE_SIGNING_SECRET"])
    app = Starlette(routes=[Route("/hook", inbox.endpoint, methods=["POST"])])
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with httpx.AsyncClient(timeout=WAIT_S) as client:
            await run(client, inbox, f"http://127.0.0.1:{listener.getsockname()[1]}/hook")
    finally:
        server.should_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(main())
