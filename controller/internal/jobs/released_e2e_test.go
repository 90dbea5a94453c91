//go:build e2e

package jobs

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The same of PostgreSQL, whose fixture is a dump; and a newer schema is refused
// with the remedy.
func TestReleasedOnPostgreSQL(t *testing.T) {
	server := startPostgres(t)
	for _, release := range releases(t) {
		t.Run(filepath.Base(release), func(t *testing.T) {
			directory := filepath.Join(release, "postgresql")
			location := server.database(t)
			dump, err := os.ReadFile(filepath.Join(directory, "dump.sql"))
			if err != nil {
				t.Fatal(err)
			}
			db, err := sql.Open("pgx", location)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.ExecContext(t.Context(), string(dump)); err != nil {
				t.Fatal(err)
			}
			openReleased(t, directory, location)
			if _, err := db.ExecContext(t.Context(), `UPDATE public.meta SET value = '2' WHERE name = 'schema'`); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(t.Context(), Config{Directory: t.TempDir(), Database: location, PublicOrigin: "http://127.0.0.1"}); err == nil || !strings.Contains(err.Error(), "run the newer program") {
				t.Errorf("a newer schema: %v", err)
			}
		})
	}
}
