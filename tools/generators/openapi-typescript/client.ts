// Uses Reveille through openapi-fetch, with the types that openapi-typescript generated. README.md shows how to run it.

import assert from "node:assert/strict";
import { setTimeout } from "node:timers/promises";
import createClient from "openapi-fetch";
import type { components, paths } from "./reveille.js";

type Schemas = components["schemas"];

const client = createClient<paths>({
  baseUrl: process.env["REVEILLE_URL"]!,
  headers: { Authorization: `Bearer ${process.env["REVEILLE_KEY"]}` },
});
// No process listens on this port, so every attempt fails.
const target = { http: { url: "http://127.0.0.1:1/" } };

/** Creates a schedule. The server returns a summary, or the result of a dry run if the request asks for one. */
async function create(body: Schemas["ScheduleRequest"]): Promise<Schemas["ScheduleSummary"]> {
  const { data, error } = await client.POST("/v1/schedules", { body });
  assert(data && "revision" in data, error?.detail);
  return data;
}

const labels = { client: "openapi-typescript" };
const created = await create({ target, every: "1h", labels, payload: { invoice: 4711 } });
assert.equal(created.revision, 0);
console.log("create: ok");

const path = { id: created.id };
const { data: schedule } = await client.GET("/v1/schedules/{id}", { params: { path } });
assert.equal(schedule?.every, "1h");
assert.deepEqual(schedule.payload, { invoice: 4711 });
console.log("get: ok");

const query = { label: "client=openapi-typescript" };
const { data: page } = await client.GET("/v1/schedules", { params: { query } });
assert(page?.schedules.some((schedule) => schedule.id === created.id));
console.log("list: ok");

const { data: patched } = await client.PATCH("/v1/schedules/{id}", { params: { path }, body: { every: "2h" } });
assert(patched && "revision" in patched);
assert.equal(patched.revision, 1);
console.log("patch: ok");

const { data: cancelled } = await client.DELETE("/v1/schedules/{id}", { params: { path } });
assert.equal(cancelled?.result, "cancelled");
const { data: after } = await client.GET("/v1/schedules/{id}", { params: { path } });
assert.equal(after?.state, "cancelled");
assert.equal(after.next, null);
console.log("cancel: ok");

// A batch is one text with a request on each line. The response has a result on each line.
const requests: Schemas["ScheduleRequest"][] = [{ target, every: "1h" }, { target, every: "never" }];
const { data: results } = await client.POST("/v1/schedules:batch", {
  headers: { "Content-Type": "application/x-ndjson" },
  body: requests.map((request) => JSON.stringify(request)).join("\n"),
  bodySerializer: (lines) => lines,
  parseAs: "text",
});
const [first, second] = results!.trim().split("\n").map((line): Schemas["BatchLine"] => JSON.parse(line));
assert.equal(first?.status, 201);
assert.equal(first.schedule?.revision, 0);
assert.equal(second?.status, 422);
assert.equal(second.problem?.code, "invalid_schedule");
console.log("batch: ok");

// An instant that has just passed fires at once.
const due = await create({ target, at: new Date().toISOString(), retry: { attempts_max: 1 } });
let runs: Schemas["Run"][] = [];
for (let tries = 0; tries < 300 && runs.length === 0; tries += 1) {
  const { data: page } = await client.GET("/v1/schedules/{id}/runs", { params: { path: { id: due.id } } });
  runs = page!.runs;
  await setTimeout(100);
}
assert.deepEqual(runs.map((run) => run.state), ["failed"]);
assert(runs[0]?.attempts[0]?.error);
console.log("runs: ok");

const { error: problem } = await client.POST("/v1/schedules", { body: { target, cron: "every morning" } });
assert.equal(problem?.code, "invalid_schedule");
assert.equal(problem.errors?.[0]?.code, "invalid_cron");
assert.equal(problem.errors[0].pointer, "/cron");
console.log("error: ok");
