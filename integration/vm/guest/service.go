package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/quittance/quittance/controller/api"
)

// The job service as the packages configure it.
const (
	serviceURL = "http://127.0.0.1:8470"
	tokenFile  = "/var/lib/quittance-controller/jobs/first-token"
)

// service is the connection to the job service. What agentctl does is shown once,
// by controllerJob; a process for every look would take the emulated machine's
// time from what is looked at.
var service = http.Client{Timeout: patience}

// exchange sends one request to the job service and returns the answer's body.
func exchange(ctx context.Context, route api.Route, job string, header http.Header, body []byte) (answer []byte, err error) {
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, err
	}
	path := strings.Replace(route.Path, "{job}", job, 1)
	request, err := http.NewRequestWithContext(ctx, route.Method, serviceURL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		request.Header[name] = values
	}
	request.Header.Set(api.HeaderVersion, strconv.Itoa(api.Version))
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	response, err := service.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	answer, err = io.ReadAll(io.LimitReader(response.Body, max(route.MaxResponse, 64<<10)))
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", route.Method, path, response.Status, last(string(answer), 500))
	}
	return answer, err
}

// lookUp reads what the job service says of a job on one of its routes.
func lookUp[T any](ctx context.Context, route api.Route, job string) (T, error) {
	var answer T
	body, err := exchange(ctx, route, job, nil, nil)
	if err == nil {
		err = api.Decode(body, route.MaxResponse, &answer)
	}
	return answer, err
}

// getJob reads a job.
func getJob(ctx context.Context, id string) (api.Job, error) {
	return lookUp[api.Job](ctx, api.RouteGetJob, id)
}

// awaitService waits until the controller's job service answers.
func awaitService(ctx context.Context) error {
	return await(ctx, patience, "the job service answers", func() error {
		if _, err := run(ctx, "systemctl", "is-active", controllerUnit); err != nil {
			return err
		}
		_, err := lookUp[api.JobList](ctx, api.RouteListJobs, "")
		return err
	})
}

// submit creates a job under an operation id and returns its id.
func submit(ctx context.Context, operation string) (string, error) {
	return submitKind(ctx, "langid.text.v1", article, operation)
}

func submitKind(ctx context.Context, kind, input, operation string) (string, error) {
	header := http.Header{}
	header.Set("Content-Type", api.ContentJSON)
	header.Set(api.HeaderIdempotencyKey, operation)
	body := api.Encode(api.CreateJob{Kind: kind, Input: &api.CreateData{Text: &input}, NewIntent: true})
	var answer api.CreateJobAnswer
	// A kind is known once the lanes announced it. The same operation again is the
	// same job (I12).
	err := await(ctx, patience, "the job is created", func() error {
		got, err := exchange(ctx, api.RouteCreateJob, "", header, body)
		if err == nil {
			err = api.Decode(got, api.RouteCreateJob.MaxResponse, &answer)
		}
		return err
	})
	return answer.Job.Job, err
}

// awaitJob waits until a job has ended and its attempts too, and returns its
// state and result.
func awaitJob(ctx context.Context, id string) (state api.JobState, result string, err error) {
	err = await(ctx, patience, "job "+id+" has ended", func() error {
		job, err := getJob(ctx, id)
		if err != nil {
			return err
		}
		state = job.State
		for _, a := range job.Attempts {
			if a.State == api.AttemptInProgress {
				return errors.New("an attempt is in progress")
			}
		}
		if !state.Terminal() {
			return fmt.Errorf("it is %s", state)
		}
		return nil
	})
	if err == nil && state == api.JobFinished {
		err = await(ctx, patience, "the result of job "+id, func() error {
			got, err := exchange(ctx, api.RouteResult, id, nil, nil)
			result = string(got)
			return err
		})
	}
	return state, result, err
}
