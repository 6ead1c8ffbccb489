// Command client uses Reveille through a client that oapi-codegen generated. README.md shows how to run it.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"slices"
	"time"

	"reveille.example/client/reveille"
)

// No process listens on this port, so every attempt fails.
var target = reveille.TargetRequest{Http: &reveille.TargetRequestHttp{Url: "http://127.0.0.1:1/"}}

func main() {
	ctx := context.Background()
	key := func(_ context.Context, request *http.Request) error {
		request.Header.Set("Authorization", "Bearer "+os.Getenv("REVEILLE_KEY"))
		return nil
	}
	client := must(reveille.NewClientWithResponses(os.Getenv("REVEILLE_URL"), reveille.WithRequestEditorFn(key)))

	labels := map[string]string{"client": "oapi-codegen"}
	payload := map[string]int{"invoice": 4711}
	request := reveille.ScheduleRequest{Target: target, Every: ptr("1h"), Labels: &labels, Payload: payload}
	created := must(client.CreateScheduleWithResponse(ctx, nil, request)).JSON201
	check("create", created != nil && created.Revision == 0)

	schedule := must(client.GetScheduleWithResponse(ctx, created.Id, nil)).JSON200
	check("get", schedule != nil && *schedule.Every == "1h" && fmt.Sprint(schedule.Payload) == "map[invoice:4711]")

	filter := &reveille.ListSchedulesParams{Label: ptr("client=oapi-codegen")}
	page := must(client.ListSchedulesWithResponse(ctx, filter)).JSON200
	check("list", page != nil && slices.ContainsFunc(page.Schedules, func(listed reveille.Schedule) bool {
		return listed.Id == created.Id
	}))

	change := reveille.SchedulePatch{Every: ptr("2h")}
	// The response is a summary, or the result of a dry run.
	patched := must(must(client.PatchScheduleWithResponse(ctx, created.Id, nil, change)).JSON200.AsScheduleSummary())
	check("patch", patched.Revision == 1)

	cancelled := must(client.CancelScheduleWithResponse(ctx, created.Id, nil)).JSON200
	schedule = must(client.GetScheduleWithResponse(ctx, created.Id, nil)).JSON200
	check("cancel", cancelled != nil && cancelled.Result == reveille.CancelResultCancelled &&
		schedule.State == reveille.ScheduleStateCancelled && schedule.Next == nil)

	// A batch has a request on each line, and its response has a result on each line.
	var lines bytes.Buffer
	for _, every := range []string{"1h", "never"} {
		lines.Write(append(must(json.Marshal(reveille.ScheduleRequest{Target: target, Every: &every})), '\n'))
	}
	params := &reveille.CreateScheduleBatchParams{}
	batch := must(client.CreateScheduleBatchWithBodyWithResponse(ctx, params, "application/x-ndjson", &lines))
	var first, second reveille.BatchLine
	results := json.NewDecoder(bytes.NewReader(batch.Body))
	succeed(results.Decode(&first))
	succeed(results.Decode(&second))
	check("batch", first.Status == 201 && first.Schedule.Revision == 0 &&
		second.Status == 422 && second.Problem.Code == reveille.ProblemCodeInvalidSchedule)

	// An instant that has just passed fires at once.
	request = reveille.ScheduleRequest{
		Target: target, At: ptr(time.Now()), Retry: &reveille.RetryRequest{AttemptsMax: ptr(uint16(1))},
	}
	due := must(client.CreateScheduleWithResponse(ctx, nil, request)).JSON201
	var runs []reveille.Run
	for tries := 0; tries < 300 && len(runs) == 0; tries++ {
		runs = must(client.ListScheduleRunsWithResponse(ctx, due.Id, nil)).JSON200.Runs
		time.Sleep(100 * time.Millisecond)
	}
	check("runs", len(runs) == 1 && runs[0].State == reveille.RunStateFailed && *runs[0].Attempts[0].Error != "")

	request = reveille.ScheduleRequest{Target: target, Cron: ptr("every morning")}
	problem := must(client.CreateScheduleWithResponse(ctx, nil, request)).ApplicationproblemJSON422
	check("error", problem != nil && problem.Code == reveille.ProblemCodeInvalidSchedule &&
		(*problem.Errors)[0].Code == "invalid_cron" && *(*problem.Errors)[0].Pointer == "/cron")
}

func check(step string, ok bool) {
	if !ok {
		log.Fatalf("%s: unexpected response", step)
	}
	fmt.Printf("%s: ok\n", step)
}

func must[T any](value T, err error) T {
	succeed(err)
	return value
}

func succeed(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func ptr[T any](value T) *T {
	return &value
}
