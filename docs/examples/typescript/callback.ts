// Asks Reveille for a callback in one second, verifies the callback, and drops a duplicate of it.
//
//     npm start -- [PORT]
//
// REVEILLE_URL names the server, REVEILLE_KEY contains an API key, and REVEILLE_SIGNING_SECRET contains the signing
// secret of the key's tenant.

import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { Webhook } from "standardwebhooks";

const WAIT_MS = 20_000;

type Callback = { headers: Record<string, string>; body: Buffer; payload: unknown };

/** Verifies callbacks, drops duplicates, and passes each other callback to `handle`. */
class Inbox {
  private readonly webhook: Webhook;
  // A restart loses these ids. A real service stores the id in its database, in the transaction that does the callback's
  // work. Then a crash can neither lose the work nor repeat it.
  private readonly ids = new Set<string>();

  constructor(
    secret: string,
    private readonly handle: (callback: Callback) => void,
  ) {
    this.webhook = new Webhook(secret);
  }

  /** Returns the status of the response. Reveille repeats the callback later if the status is not 2xx. */
  receive(headers: Record<string, string>, body: Buffer): number {
    let payload: unknown;
    try {
      // The signature covers the raw bytes of the body. The library also rejects a timestamp that differs from the clock
      // by more than five minutes.
      payload = this.webhook.verify(body, headers);
    } catch (error) {
      console.log(`rejected a request: ${error}`);
      return 401;
    }
    const id = headers["webhook-id"] ?? "";
    if (this.ids.has(id)) {
      console.log(`dropped a duplicate of ${id}`);
      return 204;
    }
    this.ids.add(id);
    console.log(`received ${id}: ${JSON.stringify(payload)}`);
    this.handle({ headers, body, payload });
    return 204;
  }
}

/** Starts the receiver, and returns the URL of its hook. */
async function startReceiver(inbox: Inbox, port: number): Promise<string> {
  const server = createServer(async (request, response) => {
    try {
      const pieces: Buffer[] = [];
      for await (const piece of request) pieces.push(piece);
      response.writeHead(inbox.receive(singleHeaders(request), Buffer.concat(pieces))).end();
    } catch {
      response.destroy(); // The sender closed the connection before the end of the body.
    }
  });
  server.listen(port, "127.0.0.1");
  await once(server, "listening");
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`;
}

function singleHeaders(request: IncomingMessage): Record<string, string> {
  const headers: Record<string, string> = {};
  for (const [name, value] of Object.entries(request.headers)) {
    if (typeof value === "string") headers[name] = value;
  }
  return headers;
}

/** Creates the schedule, and returns the response. A second request with the same key creates no second schedule. */
async function create(schedule: object): Promise<{ id: string; next: string }> {
  const request = {
    method: "POST",
    headers: {
      Authorization: `Bearer ${environment("REVEILLE_KEY")}`,
      "Content-Type": "application/json",
      "Idempotency-Key": randomUUID(),
    },
    body: JSON.stringify(schedule),
  };
  // A client that loses a response repeats the request with the same key and the same body. This program always repeats
  // it, to show that both responses are the same.
  const texts: string[] = [];
  for (let count = 0; count < 2; count++) {
    const response = await fetch(`${environment("REVEILLE_URL")}/v1/schedules`, request);
    const text = await response.text();
    check(response.status === 201, `the server creates the schedule: ${text}`);
    texts.push(text);
  }
  const [first = "", second] = texts;
  check(first === second, "the repeated request gets the first response");
  return JSON.parse(first);
}

/** Sends the callback to the receiver again, with this body. Returns the status. */
async function deliver(target: string, callback: Callback, body: Buffer): Promise<number> {
  const headers = Object.entries(callback.headers).filter(([name]) => name.startsWith("webhook-"));
  return (await fetch(target, { method: "POST", headers, body: new Uint8Array(body) })).status;
}

function environment(name: string): string {
  const value = process.env[name];
  check(value !== undefined, `the environment contains ${name}`);
  return value;
}

function check(holds: boolean, promise: string): asserts holds {
  if (!holds) throw new Error(`failed: ${promise}`);
}

async function main(): Promise<void> {
  const callbacks: Callback[] = [];
  let arrived = (): void => {};
  const arrival = new Promise<void>((resolve) => (arrived = resolve));
  const inbox = new Inbox(environment("REVEILLE_SIGNING_SECRET"), (callback) => {
    callbacks.push(callback);
    arrived();
  });
  const target = await startReceiver(inbox, Number(process.argv[2] ?? 0));
  const payload = { order: randomUUID() };
  const at = new Date(Date.now() + 1000).toISOString();
  const schedule = await create({ at, target: { http: { url: target } }, payload });
  console.log(`created ${schedule.id} for ${schedule.next}`);

  await arrival;
  const [callback] = callbacks;
  check(callback !== undefined, "the receiver has a callback");
  check(JSON.stringify(callback.payload) === JSON.stringify(payload), "the callback has the payload of the schedule");
  check(callback.headers["reveille-schedule-id"] === schedule.id, "the callback names the schedule");

  check((await deliver(target, callback, callback.body)) === 204, "the receiver accepts the duplicate");
  const changed = Buffer.concat([callback.body, Buffer.from(" ")]);
  check((await deliver(target, callback, changed)) === 401, "the receiver rejects a changed body");
  check(callbacks.length === 1, "the receiver drops the duplicate and the changed body");
  console.log("all checks hold");
}

function fail(error: unknown): never {
  console.error(error instanceof Error ? error.message : error);
  process.exit(1);
}

setTimeout(() => fail(`failed: the program ends within ${WAIT_MS} ms`), WAIT_MS);
main().then(() => process.exit(0), fail);
