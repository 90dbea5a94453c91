package records

import (
	"context"

	"github.com/quittance/quittance/controller/api"
)

// OpenJobs counts the open jobs of every kind that a provider announced.
func (s *Store) OpenJobs(ctx context.Context) (map[string]int64, error) {
	counts := map[string]int64{}
	err := s.read(ctx, func(t *transaction) error {
		clear(counts)
		return t.rows(func(scan func(...any) error) error {
			var kind string
			var n int64
			if err := scan(&kind, &n); err != nil {
				return err
			}
			counts[kind] = n
			return nil
		}, `SELECT o.kind, (SELECT COUNT(*) FROM jobs j WHERE j.kind = o.kind AND j.state = ?)
			FROM (SELECT DISTINCT kind FROM offerings) o`, string(api.JobOpen))
	})
	return counts, err
}

// JobOf is the job and the key of a provider's own attempt, "" where there is
// none.
func (s *Store) JobOf(ctx context.Context, provider, attempt string) (job, key string, err error) {
	err = s.read(ctx, func(t *transaction) error {
		_, err := t.row([]any{&job, &key}, `SELECT job, attempt_key FROM attempts WHERE attempt = ? AND provider = ?`, attempt, provider)
		return err
	})
	return job, key, err
}
