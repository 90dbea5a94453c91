package openapi

import "github.com/quittance/quittance/controller/api"

var (
	limit       = Param{Name: "limit", Text: "Items of a page, 1 to 100."}
	limitNeeded = Param{Name: "limit", Required: true, Text: "Items of a page, 1 to 100."}
	cursor      = Param{Name: "cursor", Text: "next_cursor of the page before."}
	wait        = Param{Name: "wait", Text: "Wait for a change, 0s to 60s."}
	after       = Param{Name: "after", Text: "With wait: the version that the caller has seen."}
	operation   = Param{Name: api.HeaderIdempotencyKey, Header: true, Required: true, Text: "Operation id, opaque, 1 to 200 bytes: repeating it repeats nothing."}
)

// Operations lists every route with its messages.
func Operations() []Operation {
	ok, created, both := []int{200}, []int{201}, []int{200, 201}
	return []Operation{
		{api.RouteHello, "Announce a provider.", nil, new(api.Hello), new(api.HelloAnswer), ok},
		{api.RouteFeed, "List open jobs of a kind that have an attempt left.", []Param{
			{Name: "kind", Required: true, Text: "One job kind."},
			{Name: "attempted", Required: true, Enum: []string{"true", "false"}, Text: "Whether this provider has an attempt at it since it was last opened."},
			limitNeeded, cursor,
		}, nil, new(api.Feed), ok},
		{api.RouteInput, "Read a job's exact input.", nil, nil, new(api.Input), ok},
		{api.RouteUploads, "Read a job's uploads, all of them in order.", nil, nil, new(api.Uploads), ok},
		{api.RouteGrant, "Get a short-lived grant to read an upload.", nil, new(api.GrantRequest), new(api.Grant), created},
		{api.RouteStart, "Start an attempt; the same key and bytes replay.", nil, new(api.Start), new(api.Admission), both},
		{api.RouteAttempt, "Read an attempt.", nil, nil, new(api.Attempt), ok},
		{api.RouteInventory, "List this provider's live attempts.", []Param{
			{Name: "state", Required: true, Enum: []string{string(api.AttemptInProgress)}, Text: "The state to list."}, limitNeeded, cursor,
		}, nil, new(api.Inventory), ok},
		{api.RouteProgress, "Report progress and renew the attempt's lease.", nil, new(api.Progress), new(api.ProgressAnswer), ok},
		{api.RouteComplete, "End an attempt with a result; the same bytes replay.", nil, new(api.Complete), new(api.CompleteReceipt), ok},
		{api.RouteFail, "End an attempt without a result; the same bytes replay.", nil, new(api.Fail), new(api.FailReceipt), ok},
		{api.RouteReceipts, "Attach signed host receipts.", nil, new(api.HostReceipts), new(api.HostReceiptsAnswer), ok},
		{api.RouteStore, "Read an upload by a grant.", nil, nil, Raw(api.ContentBytes), ok},

		{api.RouteOpenAPI, "This document.", nil, nil, Raw(api.ContentJSON), ok},
		{api.RouteListOfferings, "List the kinds that providers announce.", nil, nil, new(api.Offerings), ok},
		{api.RouteCreateUpload, "Upload a file for a job.", []Param{
			{Name: api.HeaderContentDigest, Header: true, Required: true, Text: "RFC 9530 with sha-256: the file's digest."},
		}, Raw("*/*"), new(api.Upload), created},
		{api.RouteGetUpload, "Read what is known of an upload.", nil, nil, new(api.Upload), ok},
		{api.RouteCreateJob, "Create a job.", []Param{operation}, new(api.CreateJob), new(api.CreateJobAnswer), both},
		{api.RouteListJobs, "List the workspace's jobs, newest first.", []Param{
			{Name: "state", Text: "Only jobs in this state."}, {Name: "kind", Text: "Only jobs of this kind."},
			{Name: "label", Text: "Only jobs with this label, name=value."}, limit, cursor, wait, after,
		}, nil, new(api.JobList), ok},
		{api.RouteGetJob, "Read a job.", []Param{wait, after}, nil, new(api.Job), ok},
		{api.RouteEvents, "Follow a job as server-sent events; the data of each is an Event, of type gone an EventsGone.", []Param{
			{Name: api.HeaderLastEventID, Header: true, Text: "Resume after this index."},
		}, nil, Raw(api.ContentEvents), ok},
		{api.RouteResult, "Read a result's exact bytes.", nil, nil, Raw(api.ContentBytes), ok},
		{api.RouteJobReceipts, "Read a job's signed host receipts with their proofs.", nil, nil, new(api.JobReceipts), ok},
		{api.RouteProvenance, "Read what produced a job's outcomes.", nil, nil, new(api.JobProvenance), ok},
		{api.RouteWhy, "Read what happened, in one paragraph with the evidence.", nil, nil, new(api.Why), ok},
		{api.RouteCancel, "Cancel a job.", nil, nil, new(api.Job), ok},
		{api.RouteClose, "Admit no further attempt.", nil, nil, new(api.Job), ok},
		{api.RouteRetry, "Grant one more attempt after a failed or quiet one.", []Param{operation}, nil, new(api.Job), ok},
	}
}
