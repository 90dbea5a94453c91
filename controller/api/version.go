package api

import "net/http"

// Version is the API version that this package describes.
const Version = 1

// Headers of both faces.
const (
	HeaderVersion        = "Quittance-API-Version" // the version that a request speaks
	HeaderTopology       = "Quittance-Topology"    // on every provider-side response: which environment answered
	HeaderRequestID      = "X-Request-Id"          // on every response, made by the service
	HeaderIdempotencyKey = "Idempotency-Key"       // operation id of create and retry
	HeaderSchema         = "Quittance-Schema"      // on a result: the schema of its bytes
	HeaderContentDigest  = "Content-Digest"        // RFC 9530, sha-256
	HeaderLastEventID    = "Last-Event-ID"         // resumes an event stream

	ContentJSON    = "application/json"
	ContentProblem = "application/problem+json"
	ContentBytes   = "application/octet-stream"
	ContentEvents  = "text/event-stream"
)

// Bounds on members, enforced by whoever writes and whoever reads (I33).
const (
	MaxInputBytes      = 786_432 // a job's input
	MaxResultBytes     = 786_432 // a result
	MaxUploadBytes     = 32 << 20
	MaxUploads         = 64 // uploads of one job
	MaxOfferings       = 64 // offerings of one hello
	MaxLanes           = 256
	MaxPageItems       = 100
	DefaultPageItems   = 50
	MaxPageBytes       = 65_536 // an answer of the provider's jobs listing
	MaxCursorBytes     = 512
	MaxMessageScalars  = 1024 // Unicode scalar values of a failure's message
	MaxReasonBytes     = 512
	MaxInputSchema     = 65_536 // bytes of an offering's JSON Schema
	MaxExecutions      = 2
	MaxClaims          = 16
	MaxHostReceipts    = 64 // per attempt
	MaxLeafBytes       = 16 << 10
	MaxProofBytes      = 16 << 10
	MaxHostKeyBytes    = 256
	MaxLabels          = 16
	MaxAttemptLimit    = 10  // that a creation may ask for
	MaxAttempts        = 32  // of one job in all, retries and reopenings included
	MaxIdempotencyKey  = 200 // bytes
	MaxWaitSeconds     = 60
	MaxCancelAfterMs   = 30 * 24 * 60 * 60 * 1000
	MaxSequence        = 1<<53 - 1 // seq of hello and heartbeat
	MaxStringBytes     = 256       // free-form names and versions
	MaxRequestIDBytes  = 64
	MaxHeaderBytes     = 32 << 10
	SignatureSkewLimit = 300 // seconds between two clocks; more is clock_skew
)

// Route is one operation with its ceilings in bytes.
type Route struct {
	Name        string // stable name, the operationId of the OpenAPI document
	Method      string
	Path        string // in the form of net/http patterns
	Provider    bool   // signed by a provider; else a bearer token
	MaxRequest  int64  // bytes of the body; 0: the request has no body
	MaxResponse int64  // bytes of a successful answer's body
}

// Pattern is the route in the form that http.ServeMux takes.
func (r Route) Pattern() string { return r.Method + " " + r.Path }

// The provider's operations.
var (
	RouteHello = Route{"hello", http.MethodPost, "/provider/v1/hello", true, 6 << 20, 8 << 10}
	RouteFeed  = Route{"feed", http.MethodGet, "/provider/v1/jobs", true, 0, MaxPageBytes}
	RouteInput = Route{"input", http.MethodGet, "/provider/v1/jobs/{job}/input", true, 0, 1_056_768}
	// RouteUploads answers the whole ordered membership.
	RouteUploads   = Route{"uploads", http.MethodGet, "/provider/v1/jobs/{job}/uploads", true, 0, 64 << 10}
	RouteGrant     = Route{"grant", http.MethodPost, "/provider/v1/jobs/{job}/uploads/{upload}/grant", true, 1 << 10, 4 << 10}
	RouteStart     = Route{"start", http.MethodPost, "/provider/v1/attempts", true, 4 << 10, 4 << 10}
	RouteAttempt   = Route{"attempt", http.MethodGet, "/provider/v1/attempts/{attempt}", true, 0, 4 << 10}
	RouteInventory = Route{"inventory", http.MethodGet, "/provider/v1/attempts", true, 0, 128 << 10}
	RouteProgress  = Route{"progress", http.MethodPut, "/provider/v1/attempts/{attempt}/progress", true, 2 << 10, 4 << 10}
	// RouteComplete carries a whole result in base64 with its provenance.
	RouteComplete = Route{"complete", http.MethodPost, "/provider/v1/attempts/{attempt}/complete", true, 1_114_112, 4 << 10}
	RouteFail     = Route{"fail", http.MethodPost, "/provider/v1/attempts/{attempt}/fail", true, 96 << 10, 16 << 10}
	RouteReceipts = Route{"receipts", http.MethodPut, "/provider/v1/attempts/{attempt}/receipts", true, 3 << 20, 4 << 10}
)

// RouteStore serves an upload's bytes to the bearer of a read grant.
var RouteStore = Route{"store", http.MethodGet, "/store/v1/uploads/{upload}", false, 0, MaxUploadBytes}

// RouteOpenAPI serves the description of both faces to everyone.
var RouteOpenAPI = Route{"openapi", http.MethodGet, "/openapi.json", false, 0, 1 << 20}

// The user's operations.
var (
	RouteCreateJob     = Route{"createJob", http.MethodPost, "/v1/jobs", false, 5 << 20, 1 << 20}
	RouteListJobs      = Route{"listJobs", http.MethodGet, "/v1/jobs", false, 0, 16 << 20}
	RouteGetJob        = Route{"getJob", http.MethodGet, "/v1/jobs/{job}", false, 0, 1 << 20}
	RouteEvents        = Route{"events", http.MethodGet, "/v1/jobs/{job}/events", false, 0, 0}
	RouteResult        = Route{"result", http.MethodGet, "/v1/jobs/{job}/result", false, 0, MaxResultBytes}
	RouteJobReceipts   = Route{"jobReceipts", http.MethodGet, "/v1/jobs/{job}/receipts", false, 0, 32 << 20}
	RouteProvenance    = Route{"provenance", http.MethodGet, "/v1/jobs/{job}/provenance", false, 0, 4 << 20}
	RouteWhy           = Route{"why", http.MethodGet, "/v1/jobs/{job}/why", false, 0, 64 << 10}
	RouteCancel        = Route{"cancel", http.MethodPost, "/v1/jobs/{job}/cancel", false, 0, 1 << 20}
	RouteClose         = Route{"close", http.MethodPost, "/v1/jobs/{job}/close", false, 0, 1 << 20}
	RouteRetry         = Route{"retry", http.MethodPost, "/v1/jobs/{job}/retry", false, 0, 1 << 20}
	RouteCreateUpload  = Route{"createUpload", http.MethodPost, "/v1/uploads", false, MaxUploadBytes, 4 << 10}
	RouteGetUpload     = Route{"getUpload", http.MethodGet, "/v1/uploads/{upload}", false, 0, 4 << 10}
	RouteListOfferings = Route{"listOfferings", http.MethodGet, "/v1/offerings", false, 0, 16 << 20}
)

// Routes lists every operation of both faces.
func Routes() []Route {
	return []Route{
		RouteHello, RouteFeed, RouteInput, RouteUploads, RouteGrant, RouteStart, RouteAttempt,
		RouteInventory, RouteProgress, RouteComplete, RouteFail, RouteReceipts, RouteStore, RouteOpenAPI,
		RouteCreateJob, RouteListJobs, RouteGetJob, RouteEvents, RouteResult, RouteJobReceipts,
		RouteProvenance, RouteWhy, RouteCancel, RouteClose, RouteRetry, RouteCreateUpload, RouteGetUpload,
		RouteListOfferings,
	}
}
