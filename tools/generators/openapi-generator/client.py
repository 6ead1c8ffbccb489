"""Uses Reveille through a client that openapi-generator generated. README.md shows how to run it."""

import os
import time
from datetime import datetime, timedelta, timezone

from reveille_client import (
    ApiClient,
    ApiException,
    BatchLine,
    CancelResult,
    Configuration,
    RetryRequest,
    RunState,
    SchedulePatch,
    ScheduleRequest,
    SchedulesApi,
    ScheduleState,
    ScheduleSummary,
    TargetRequest,
    TargetRequestHttp,
)

configuration = Configuration(host=os.environ["REVEILLE_URL"], access_token=os.environ["REVEILLE_KEY"])
schedules = SchedulesApi(ApiClient(configuration))
# No process listens on this port, so every attempt fails.
target = TargetRequest(http=TargetRequestHttp(url="http://127.0.0.1:1/"))

labels = {"client": "openapi-generator"}
created = schedules.create_schedule(ScheduleRequest(target=target, every="1h", labels=labels, payload={"invoice": 4711}))
assert isinstance(created, ScheduleSummary) and created.revision == 0, created
print("create: ok")

schedule = schedules.get_schedule(created.id)
assert schedule.every == "1h" and schedule.payload == {"invoice": 4711}, schedule
print("get: ok")

page = schedules.list_schedules(label="client=openapi-generator")
assert created.id in [schedule.id for schedule in page.schedules], page
print("list: ok")

# The response to a patch is a summary of the schedule or the result of a dry run. The generated client wraps this
# response in an object whose field `actual_instance` contains it.
patched = schedules.patch_schedule(created.id, SchedulePatch(every="2h")).actual_instance
assert isinstance(patched, ScheduleSummary) and patched.revision == 1, patched
print("patch: ok")

cancelled = schedules.cancel_schedule(created.id)
assert cancelled.result is CancelResult.CANCELLED, cancelled
schedule = schedules.get_schedule(created.id)
assert schedule.state is ScheduleState.CANCELLED and schedule.next is None, schedule
print("cancel: ok")

# A batch has a request on each line, and its response has a result on each line. The program sets the media type of the
# body, because the generated client would otherwise encode the body as one JSON text.
lines = [ScheduleRequest(target=target, every=every).to_json() for every in ("1h", "never")]
results = schedules.create_schedule_batch(body="\n".join(lines).encode(), _content_type="application/octet-stream")
first, second = [BatchLine.from_json(line) for line in results.decode().splitlines()]
assert first.status == 201 and first.schedule.revision == 0, first
assert second.status == 422 and second.problem.code == "invalid_schedule", second
print("batch: ok")

# A schedule whose instant has just passed fires at once.
at_once = ScheduleRequest(target=target, at=datetime.now(timezone.utc), retry=RetryRequest(attempts_max=1))
due = schedules.create_schedule(at_once)
for _ in range(300):
    runs = schedules.list_schedule_runs(due.id).runs
    if runs:
        break
    time.sleep(0.1)
assert [run.state for run in runs] == [RunState.FAILED] and runs[0].attempts[0].error, runs
print("runs: ok")

# The page token contains the range, so only the first request contains it.
page = schedules.list_runs(var_from=at_once.at - timedelta(minutes=1), state="failed", host="127.0.0.1", limit=1)
listed = list(page.runs)
while page.next_page_token is not None:
    page = schedules.list_runs(page_token=page.next_page_token, state="failed", host="127.0.0.1", limit=1)
    listed += page.runs
assert due.id in [run.schedule_id for run in listed], listed
print("listing of runs: ok")

try:
    schedules.create_schedule(ScheduleRequest(target=target, cron="every morning"))
    raise SystemExit("the server accepted an invalid cron expression")
except ApiException as exception:
    problem = exception.data
assert problem.code == "invalid_schedule", problem
assert problem.errors[0].code == "invalid_cron" and problem.errors[0].pointer == "/cron", problem
print("error: ok")
