package records

import (
	"context"
	"errors"
	"io"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/jobs/blobs"
	"github.com/quittance/quittance/protocol"
)

// Upload takes a file of the announced length and digest from body and keeps it.
func (s *Store) Upload(ctx context.Context, workspace, contentType string, length int64, digest protocol.Digest, body io.Reader) (api.Upload, error) {
	var upload api.Upload
	if err := s.read(ctx, func(t *transaction) error { return t.roomFor(workspace, length) }); err != nil {
		return upload, err
	}
	pending, err := s.blobs.Begin()
	if err != nil {
		return upload, err
	}
	// One byte more than announced is enough to know that it is too much.
	if _, err := io.Copy(pending, io.LimitReader(body, length+1)); err != nil {
		return upload, errors.Join(err, pending.Abort())
	}
	// The row that keeps the file from being collected comes before its name.
	if err := s.db.Write(ctx, s.begin(ctx, func(t *transaction) error { return t.touchBlob(digest, length) })); err != nil {
		return upload, errors.Join(err, pending.Abort())
	}
	if err := pending.Place(digest, length); err != nil {
		if errors.Is(err, blobs.ErrMismatch) {
			return upload, api.NewProblem(api.CodeDigestMismatch, "The bytes that arrived are not those that Content-Length and Content-Digest announced.",
				"Upload the file again; nothing was kept.")
		}
		return upload, err
	}
	id := api.NewUploadID()
	err = s.write(ctx, func(t *transaction) error {
		if err := t.roomFor(workspace, length); err != nil {
			return err
		}
		expires := t.now + s.policy.UploadTTL.Microseconds()
		upload = api.Upload{
			Upload: id, ContentType: contentType, Length: length, SHA256: digest, Created: stamp(t.now), Expires: stampOrNil(&expires),
		}
		return t.exec(`INSERT INTO uploads (upload, workspace, content_type, length, sha256, created, expires) VALUES (?, ?, ?, ?, ?, ?, ?)`,
			id, workspace, contentType, length, digest, t.now, expires)
	})
	return upload, err
}

// roomFor bounds what a workspace may keep without using it.
func (t *transaction) roomFor(workspace string, length int64) error {
	var idle int64
	if _, err := t.row([]any{&idle}, `SELECT CAST(COALESCE(SUM(length), 0) AS BIGINT) FROM uploads
		WHERE workspace = ? AND job IS NULL`, workspace); err != nil {
		return err
	}
	if idle+length > t.store.policy.MaxIdleBytes {
		return api.NewProblem(api.CodeLimitReached, "The workspace has as many bytes in uploads that no job uses as it may have.",
			"Use them in jobs, or wait until they expire.")
	}
	return nil
}

// GetUpload reads what is known of an upload.
func (s *Store) GetUpload(ctx context.Context, workspace, id string) (api.Upload, error) {
	upload := api.Upload{Upload: id}
	err := s.read(ctx, func(t *transaction) error {
		var created int64
		var expires *int64
		found, err := t.row([]any{&upload.ContentType, &upload.Length, &upload.SHA256, &created, &expires, &upload.Job},
			`SELECT content_type, length, sha256, created, expires, job FROM uploads
			WHERE upload = ? AND workspace = ? AND (expires IS NULL OR expires > ?)`, id, workspace, t.now)
		if err != nil {
			return err
		}
		if !found {
			return Refuse(api.CodeNotFound)
		}
		upload.Created, upload.Expires = stamp(created), stampOrNil(expires)
		return nil
	})
	return upload, err
}

// Offerings lists the announced kinds.
func (s *Store) Offerings(ctx context.Context) (api.Offerings, error) {
	answer := api.Offerings{Offerings: []api.Offering{}}
	err := s.read(ctx, func(t *transaction) error {
		answer.Offerings = answer.Offerings[:0]
		return t.rows(func(scan func(...any) error) error {
			var body []byte
			var heard int64
			if err := scan(&body, &heard); err != nil {
				return err
			}
			var announced api.HelloOffering
			if err := api.Decode(body, api.RouteHello.MaxRequest, &announced); err != nil {
				return err
			}
			available := announced.Available && t.now-heard < s.policy.HelloTTL.Microseconds()
			last := len(answer.Offerings) - 1
			if last < 0 || answer.Offerings[last].Kind != announced.Kind {
				answer.Offerings = append(answer.Offerings, api.Offering{Kind: announced.Kind, Input: announced.Input, Reason: announced.Reason})
				last++
			}
			offering := &answer.Offerings[last]
			offering.Providers++
			if available {
				offering.Available, offering.Reason, offering.Input = true, "", announced.Input
			} else if !offering.Available && offering.Reason == "" {
				offering.Reason = "no provider was heard recently"
			}
			return nil
		}, `SELECT o.body, p.heard FROM offerings o JOIN providers p ON p.provider = o.provider ORDER BY o.kind, o.provider`)
	})
	return answer, err
}
