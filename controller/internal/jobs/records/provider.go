package records

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// Hello replaces a provider's announcement, unless its seq is not above the one
// that stands or another store holds the identity.
func (s *Store) Hello(ctx context.Context, provider string, hello *api.Hello) (api.HelloAnswer, error) {
	var answer api.HelloAnswer
	err := s.write(ctx, func(t *transaction) error {
		var store protocol.ID
		var seq, observed, heard int64
		found, err := t.row([]any{&store, &seq, &observed, &heard},
			`SELECT store, seq, observed, heard FROM providers WHERE provider = ?`, provider)
		if err != nil {
			return err
		}
		var live int64
		if _, err := t.row([]any{&live}, `SELECT COUNT(*) FROM attempts WHERE provider = ? AND state = ?`,
			provider, api.AttemptInProgress); err != nil {
			return err
		}
		switch {
		case found && store != hello.Store && (live > 0 || t.now-heard < s.policy.HelloTTL.Microseconds()):
			problem := Refuse(api.CodeIdentityInUse)
			problem.Store = &store
			return problem
		case found && store == hello.Store && hello.Seq <= seq:
			// An older or repeated announcement changes nothing.
		default:
			store, seq, observed = hello.Store, hello.Seq, t.now
			if err := t.announce(provider, hello); err != nil {
				return err
			}
		}
		answer = api.HelloAnswer{
			Provider: provider, Store: store, Seq: seq, ObservedAt: stamp(observed),
			LeaseMillis: s.policy.AttemptLease.Milliseconds(), HelloTTL: s.policy.HelloTTL.Milliseconds(),
			ServiceTime: stamp(t.now), LiveAttempts: live,
		}
		return nil
	})
	return answer, err
}

func (t *transaction) announce(provider string, hello *api.Hello) error {
	if err := t.exec(`INSERT INTO providers (provider, store, seq, observed, heard, lanes, hello) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (provider) DO UPDATE SET store = excluded.store, seq = excluded.seq, observed = excluded.observed,
		heard = excluded.heard, lanes = excluded.lanes, hello = excluded.hello`,
		provider, hello.Store, hello.Seq, t.now, t.now, hello.Lanes, api.Encode(hello)); err != nil {
		return err
	}
	if err := t.exec(`DELETE FROM offerings WHERE provider = ?`, provider); err != nil {
		return err
	}
	for i := range hello.Offerings {
		offering := &hello.Offerings[i]
		if err := t.exec(`INSERT INTO offerings (provider, kind, available, body) VALUES (?, ?, ?, ?)`,
			provider, offering.Kind, bit(offering.Available), api.Encode(offering)); err != nil {
			return err
		}
	}
	return nil
}

// HandOver gives a provider identity to another store, whoever holds it now, and
// fails the old store's attempts in progress as interrupted, entered. It returns
// how many.
func (s *Store) HandOver(ctx context.Context, provider string, store protocol.ID) (int, error) {
	failed := 0
	err := s.write(ctx, func(t *transaction) error {
		failed = 0
		changed, err := t.Exec(ctx, `UPDATE providers SET store = ?, seq = 0, heard = ? WHERE provider = ?`, store, t.now, provider)
		if err != nil {
			return err
		}
		if changed == 0 {
			return Refuse(api.CodeHelloRequired)
		}
		var live []*attempt
		if err := t.rows(func(scan func(...any) error) error {
			a := new(attempt)
			live = append(live, a)
			return scan(a.targets()...)
		}, `SELECT `+attemptColumns+` FROM attempts WHERE provider = ? AND state = ?`, provider, api.AttemptInProgress); err != nil {
			return err
		}
		for _, a := range live {
			a.failCode, a.failMessage, a.entered = api.FailInterrupted, "The provider identity was handed over to another attempt store.", true
			if _, err := t.fail(a); err != nil {
				return err
			}
			failed++
		}
		return nil
	})
	return failed, err
}

// Feed lists open jobs of a kind that have an attempt left.
func (s *Store) Feed(ctx context.Context, provider, kind string, attempted bool, limit int, cursor string) (api.Feed, error) {
	after, id, err := parseCursor(cursor)
	if err != nil {
		return api.Feed{}, err
	}
	feed := api.Feed{Kind: kind, Attempted: attempted, Limit: limit, Jobs: []api.FeedJob{}}
	not := "NOT "
	if attempted {
		not = ""
	}
	err = s.read(ctx, func(t *transaction) error {
		feed.Jobs, feed.NextCursor = feed.Jobs[:0], nil
		var last int64
		return t.rows(func(scan func(...any) error) error {
			var item api.FeedJob
			var created int64
			if err := scan(&item.Job, &item.Kind, &item.Input.Schema, &item.Input.Length, &item.Input.SHA256, &created,
				&item.Uploads, &item.UploadBytes); err != nil {
				return err
			}
			if len(feed.Jobs) == limit {
				next := formatCursor(last, feed.Jobs[limit-1].Job)
				feed.NextCursor = &next
				return nil
			}
			last, item.Created = created, stamp(created)
			feed.Jobs = append(feed.Jobs, item)
			return nil
		}, `SELECT j.job, j.kind, j.input_schema, j.input_length, j.input_sha256, j.created,
				(SELECT COUNT(*) FROM uploads u WHERE u.job = j.job),
				(SELECT CAST(COALESCE(SUM(u.length), 0) AS BIGINT) FROM uploads u WHERE u.job = j.job)
			FROM jobs j
			WHERE j.kind = ? AND j.state = ? AND (j.created, j.job) > (?, ?)
				AND (j.cancel_at IS NULL OR j.cancel_at > ?) AND j.attempts_used < j.attempt_limit
				AND (j.live IS NULL OR EXISTS (SELECT 1 FROM attempts l WHERE l.attempt = j.live AND l.lease_expires <= ?))
				AND `+not+`EXISTS (SELECT 1 FROM attempts a WHERE a.job = j.job AND a.provider = ? AND a.admitted >= j.opened)
			ORDER BY j.created, j.job LIMIT ?`,
			kind, api.JobOpen, after, id, t.now, t.now, provider, limit+1)
	})
	return feed, err
}

// formatCursor and parseCursor make a place in an ordered walk opaque.
func formatCursor(created int64, id string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(created, 10) + " " + id))
}

func parseCursor(cursor string) (created int64, id string, err error) {
	if cursor == "" {
		return -1, "", nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	before, id, ok := strings.Cut(string(raw), " ")
	created, numberErr := strconv.ParseInt(before, 10, 64)
	if err != nil || numberErr != nil || !ok || formatCursor(created, id) != cursor {
		problem := api.NewProblem(api.CodeBadRequest, "The cursor is not one that this service gave.", "Begin again without a cursor.")
		problem.Field = "cursor"
		return 0, "", problem
	}
	return created, id, nil
}

// offers reports whether the provider announces the kind.
func (t *transaction) offers(provider, kind string) (bool, error) {
	var one int64
	return t.row([]any{&one}, `SELECT 1 FROM offerings WHERE provider = ? AND kind = ?`, provider, kind)
}

// jobForProvider loads a job of a kind that the provider announces, or of which
// it has an attempt in progress. Every other job answers like an absent one.
func (t *transaction) jobForProvider(provider, id string) (*job, error) {
	j, err := t.job(id)
	if err != nil {
		return nil, err
	}
	if j == nil {
		return nil, Refuse(api.CodeNotFound)
	}
	if live, err := t.liveAttempt(j); err != nil || (live != nil && live.provider == provider) {
		return j, err
	}
	offered, err := t.offers(provider, j.kind)
	if err != nil {
		return nil, err
	}
	if !offered || j.state.Terminal() {
		return nil, Refuse(api.CodeNotFound)
	}
	return j, nil
}

// Input reads a job's exact input.
func (s *Store) Input(ctx context.Context, provider, id string) (api.Input, error) {
	var j *job
	if err := s.read(ctx, func(t *transaction) (err error) {
		j, err = t.jobForProvider(provider, id)
		return err
	}); err != nil {
		return api.Input{}, err
	}
	data, err := s.blobs.Get(j.input.SHA256, j.input.Length)
	if err != nil {
		return api.Input{}, err
	}
	return api.Input{
		Job: j.id, Schema: j.input.Schema, Length: j.input.Length, SHA256: j.input.SHA256, Data: data, Created: stamp(j.created),
	}, nil
}

// Uploads reads a job's full ordered membership.
func (s *Store) Uploads(ctx context.Context, provider, id string) (api.Uploads, error) {
	answer := api.Uploads{Job: id}
	err := s.read(ctx, func(t *transaction) error {
		j, err := t.jobForProvider(provider, id)
		if err != nil {
			return err
		}
		answer.Uploads, err = t.members(j.id)
		return err
	})
	return answer, err
}

func (t *transaction) members(job string) ([]api.UploadMember, error) {
	members := []api.UploadMember{}
	err := t.rows(func(scan func(...any) error) error {
		var m api.UploadMember
		var created int64
		if err := scan(&m.Upload, &m.ContentType, &m.Length, &m.SHA256, &created); err != nil {
			return err
		}
		m.Created = stamp(created)
		members = append(members, m)
		return nil
	}, `SELECT upload, content_type, length, sha256, created FROM uploads WHERE job = ? ORDER BY position`, job)
	return members, err
}

// Granted is a read grant without the origin that serves it.
type Granted struct {
	Bearer  string
	Expires protocol.Timestamp
	Length  int64
	SHA256  protocol.Digest
}

// Grant issues a read grant for an upload of a job that the provider's attempt in
// progress works on.
func (s *Store) Grant(ctx context.Context, provider, job, upload, attemptID string) (Granted, error) {
	bearer := randomSecret("qg_")
	var granted Granted
	err := s.write(ctx, func(t *transaction) error {
		a, err := t.attempt(`attempt = ? AND provider = ?`, attemptID, provider)
		if err != nil {
			return err
		}
		if a == nil || a.job != job {
			return Refuse(api.CodeNotFound)
		}
		if a.state != api.AttemptInProgress {
			return Refuse(api.CodeAttemptOver)
		}
		expires := t.now + s.policy.GrantTTL.Microseconds()
		granted = Granted{Bearer: bearer, Expires: stamp(expires)}
		found, err := t.row([]any{&granted.Length, &granted.SHA256},
			`SELECT length, sha256 FROM uploads WHERE upload = ? AND job = ?`, upload, job)
		if err != nil {
			return err
		}
		if !found {
			return Refuse(api.CodeNotFound)
		}
		return t.exec(`INSERT INTO grants (hash, upload, attempt, expires) VALUES (?, ?, ?, ?)`,
			hexSHA256([]byte(bearer)), upload, attemptID, expires)
	})
	return granted, err
}

// Redeem finds what the bearer of a grant may read, which ends with the attempt.
func (s *Store) Redeem(ctx context.Context, upload, bearer string) (length int64, digest protocol.Digest, err error) {
	err = s.read(ctx, func(t *transaction) error {
		found, err := t.row([]any{&length, &digest},
			`SELECT u.length, u.sha256 FROM grants g JOIN uploads u ON u.upload = g.upload
			JOIN attempts a ON a.attempt = g.attempt
			WHERE g.hash = ? AND g.upload = ? AND g.expires > ? AND a.state = ?`,
			hexSHA256([]byte(bearer)), upload, t.now, api.AttemptInProgress)
		if err != nil {
			return err
		}
		if !found {
			return Refuse(api.CodeGrantInvalid)
		}
		return nil
	})
	return length, digest, err
}

// randomSecret is 256 random bits in text, with a prefix that secret scanners
// can know.
func randomSecret(prefix string) string {
	var b [32]byte
	rand.Read(b[:])
	return prefix + base64.RawURLEncoding.EncodeToString(b[:])
}
