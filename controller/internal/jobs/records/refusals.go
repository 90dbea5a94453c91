package records

import "github.com/quittance/quittance/controller/api"

// refusals are the texts of the codes that operations refuse with.
var refusals = map[api.Code]api.Text{
	api.CodeNotFound:          {Message: "There is no such thing for this caller.", Next: "Check the identifier and the workspace of the token."},
	api.CodeIdentityInUse:     {Message: "Another attempt store holds this provider identity: it has attempts in progress or was heard a short time ago.", Next: "Use the other store, wait until its identity lapses, or have an administrator hand the identity over."},
	api.CodeOtherStore:        {Message: "The request comes from another attempt store than the announced one.", Next: "Announce this store with hello first."},
	api.CodeHelloRequired:     {Message: "This provider has not announced itself.", Next: "Send hello first."},
	api.CodeKeyConflict:       {Message: "The attempt key was used before with another request.", Next: "Use a new key; a key is never used twice."},
	api.CodeJobNotOpen:        {Message: "The job is closed or has ended.", Next: "Read the job; choose another one."},
	api.CodeJobBusy:           {Message: "Another attempt of the job is in progress.", Next: "Choose another job."},
	api.CodeAttemptLimit:      {Message: "The job has no attempt left.", Next: "A person may grant one more with retry."},
	api.CodeProviderLimit:     {Message: "This provider has as many attempts in progress as it has lanes.", Next: "End one first."},
	api.CodeKindMismatch:      {Message: "The job has another kind, or this provider does not announce it.", Next: "Announce the kind with hello, or choose a job of an announced kind."},
	api.CodeInputMismatch:     {Message: "The job's input is not the one that the request names.", Next: "Read the job's input again."},
	api.CodeAttemptOver:       {Message: "The attempt has ended.", Next: "Stop working on it and read the attempt."},
	api.CodeAttemptExpired:    {Message: "Another attempt was admitted after this one's lease had lapsed.", Next: "Stop; keep the outcome as evidence. It cannot be published."},
	api.CodePhaseBack:         {Message: "The attempt is running; a phase never goes back.", Next: "Report phase running."},
	api.CodeProgressConflict:  {Message: "This seq was used before with another content.", Next: "Report under a higher seq."},
	api.CodeOppositeOutcome:   {Message: "The attempt ended the other way.", Next: "Stop sending; a person must find out who ended it."},
	api.CodeOutcomeConflict:   {Message: "The attempt ended the same way with other bytes.", Next: "Stop sending; a person must find out who ended it."},
	api.CodeReceiptConflict:   {Message: "A receipt differs from the one known under its index, or belongs to another attempt.", Next: "Send exactly the leaves that the host served for this attempt."},
	api.CodeReceiptBounds:     {Message: "The attempt would have more receipts than the bound allows.", Next: "Send the receipts of this attempt's allocations only."},
	api.CodeIdempotencyReuse:  {Message: "The Idempotency-Key was used before with another payload.", Next: "Use a new key for a new operation."},
	api.CodeAmbiguousIntent:   {Message: "Several jobs with this payload were accepted within the retry window.", Next: "Repeat the key of the one meant, or set new_intent."},
	api.CodeUnknownKind:       {Message: "No provider announces this kind.", Next: "List the offerings, or start a controller that offers it."},
	api.CodeUploadMissing:     {Message: "An upload is absent, expired, or used by another job.", Next: "Upload the file again and name the new upload."},
	api.CodeNotRetryable:      {Message: "The job can be retried only after its attempt failed or fell quiet.", Next: "Read the job; submit a new one where it ended otherwise."},
	api.CodeNoResult:          {Message: "The job has no result.", Next: "Read the job's state; wait for finished."},
	api.CodeGrantInvalid:      {Message: "The grant is unknown, has expired, or is for another upload.", Next: "Ask for a new grant."},
	api.CodeLimitReached:      {Message: "The workspace has as many open jobs as it may have.", Next: "Wait until jobs end, or cancel some."},
	api.CodeIdempotencyNeeded: {Message: "The request has no Idempotency-Key.", Next: "Send one that you keep, so that a lost reply can be repeated safely."},
}

// Refuse is the problem of a code with its fixed text.
func Refuse(code api.Code) *api.Problem {
	text, ok := refusals[code]
	if !ok {
		panic("records: no text for " + code)
	}
	return api.NewProblem(code, text.Message, text.Next)
}

// refuseField is the problem of a code that names a member of the request.
func refuseField(code api.Code, field string) *api.Problem {
	problem := Refuse(code)
	problem.Field = field
	return problem
}
