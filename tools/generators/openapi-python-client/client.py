"""Uses Reveille through a client that openapi-python-client generated. README.md shows how to run it."""

import io
import json
import os
import time
from datetime import datetime, timedelta, timezone

from reveille_client import AuthenticatedClient
from reveille_client.api.schedules import (
    cancel_schedule,
    create_schedule,
    create_schedule_batch,
    get_schedule,
    list_runs,
    list_schedule_runs,
    list_schedules,
    patch_schedule,
)
from reveille_client.models import (
    BatchLine,
    CancelResult,
    ListRunsOrder,
    ListRunsState,
    Problem,
    ProblemCode,
    RetryRequest,
    RunState,
    SchedulePatch,
    ScheduleRequest,
    ScheduleRequestLabelsType0,
    ScheduleState,
    ScheduleSummary,
    TargetRequest,
    TargetRequestHttp,
)
from reveille_client.types import File

client = AuthenticatedClient(base_url=os.environ["REVEILLE_URL"], token=os.environ["REVEILLE_KEY"])
# No process listens on this port, so every attempt fails.
target = TargetRequest(http=TargetRequestHttp(url="http://127.0.0.1:1/"))

labels = ScheduleRequestLabelsType0.from_dict({"client": "openapi-python-client"})
request = ScheduleRequest(target=target, every="1h", labels=labels, payload={"invoice": 4711})
created = create_schedule.sync(client=client, body=request)
assert isinstance(created, ScheduleSummary) and created.revision == 0, created
print("create: ok")

schedule = get_schedule.sync(created.id, client=client)
assert schedule.every == "1h" and schedule.payload == {"invoice": 4711}, schedule
print("get: ok")

page = list_schedules.sync(client=client, label="client=openapi-python-client")
assert created.id in [schedule.id for schedule in page.schedules], page
print("list: ok")

patched = patch_schedule.sync(created.id, client=client, body=SchedulePatch(every="2h"))
assert isinstance(patched, ScheduleSummary) and patched.revision == 1, patched
print("patch: ok")

cancelled = cancel_schedule.sync(created.id, client=client)
assert cancelled.result is CancelResult.CANCELLED, cancelled
schedule = get_schedule.sync(created.id, client=client)
assert schedule.state is ScheduleState.CANCELLED and schedule.next_ is None, schedule
print("cancel: ok")

# The generator does not support NDJSON. The client therefore sends bytes, and the program parses the response itself.
lines = [json.dumps(ScheduleRequest(target=target, every=every).to_dict()) for every in ("1h", "never")]
response = create_schedule_batch.sync_detailed(client=client, body=File(io.BytesIO("\n".join(lines).encode())))
first, second = [BatchLine.from_dict(json.loads(line)) for line in response.content.splitlines()]
assert first.status == 201 and first.schedule.revision == 0, first
assert second.status == 422 and second.problem.code is ProblemCode.INVALID_SCHEDULE, second
print("batch: ok")

# A schedule whose instant has just passed fires at once.
request = ScheduleRequest(target=target, at=datetime.now(timezone.utc), retry=RetryRequest(attempts_max=1))
due = create_schedule.sync(client=client, body=request)
for _ in range(300):
    runs = list_schedule_runs.sync(due.id, client=client).runs
    if runs:
        break
    time.sleep(0.1)
assert [run.state for run in runs] == [RunState.FAILED] and runs[0].attempts[0].error, runs
print("runs: ok")

# Each page has at most one run. A page may be empty although more pages follow. The page token contains the range, so
# only the first request contains it.
fires = [datetime.now(timezone.utc) - timedelta(milliseconds=number) for number in range(3)]
for at in fires:
    request = ScheduleRequest(target=target, at=at, labels=labels, retry=RetryRequest(attempts_max=1))
    assert isinstance(create_schedule.sync(client=client, body=request), ScheduleSummary)
filters = {
    "state": ListRunsState.FAILED,
    "label": "client=openapi-python-client",
    "host": "127.0.0.1",
    "order": ListRunsOrder.OLDEST,
    "limit": 1,
}
for _ in range(300):
    page = list_runs.sync(client=client, from_=fires[-1] - timedelta(minutes=1), **filters)
    listed = list(page.runs)
    while page.next_page_token is not None:
        page = list_runs.sync(client=client, page_token=page.next_page_token, **filters)
        listed += page.runs
    if len(listed) >= len(fires):
        break
    time.sleep(0.1)
assert len({run.id for run in listed}) == len(listed) == len(fires), listed
assert listed == sorted(listed, key=lambda run: run.scheduled_at), listed
assert all(run.attempts[0].error_class == "unreachable" for run in listed), listed
print("listing of runs: ok")

problem = create_schedule.sync(client=client, body=ScheduleRequest(target=target, cron="every morning"))
assert isinstance(problem, Problem) and problem.code is ProblemCode.INVALID_SCHEDULE, problem
assert problem.errors[0].code == "invalid_cron" and problem.errors[0].pointer == "/cron", problem
print("error: ok")
