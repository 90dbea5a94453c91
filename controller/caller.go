package controller

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"
)

// folder is what the file system says of one of the controller's directories.
type folder struct {
	key        string // of the configuration, for messages
	path       string
	owner, gid int
	open       bool // to the caller: may list it and make files in it
}

// CheckCaller refuses a process that would leave files in the controller's
// directories which the controller itself cannot read. Every file there is made
// with mode 0600 as whoever runs the command, the files that SQLite makes beside
// a database that is only read included, so the directories' owner is the one
// user to open them, and root is not. A directory that does not exist yet will
// belong to the caller.
func CheckCaller(c Config) error {
	euid := os.Geteuid()
	for _, dir := range [][2]string{{"state_dir", c.StateDir}, {"service.data_dir", c.JobsDir()}} {
		f, err := lookAt(dir[0], dir[1], euid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%s: %w for user %d: run the command as the user that it belongs to", dir[0], err, euid)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", dir[0], err)
		}
		if err := f.permits(euid, userName); err != nil {
			return err
		}
	}
	return nil
}

func lookAt(key, path string, euid int) (folder, error) {
	info := unix.Stat_t{}
	if err := unix.Stat(path, &info); err != nil {
		return folder{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	f := folder{key: key, path: path, owner: int(info.Uid), gid: int(info.Gid), open: true}
	if f.owner != euid {
		f.open = unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil
	}
	return f, nil
}

// permits says whether a process of user euid may work in the directory. name is
// the name of a user, "" for one without.
func (f folder) permits(euid int, name func(uid int) string) error {
	if f.owner == euid || euid != 0 && f.open {
		return nil
	}
	owner, remedy := name(f.owner), ""
	if owner == "" {
		owner = fmt.Sprintf("user %d", f.owner)
		remedy = fmt.Sprintf("`setpriv --reuid=%d --regid=%d --clear-groups controller …`", f.owner, f.gid)
	} else {
		remedy = fmt.Sprintf("`runuser -u %s -- controller …`", owner)
	}
	if euid == 0 {
		return fmt.Errorf("%s: %s belongs to %s, who could not read what root makes there: use %s", f.key, f.path, owner, remedy)
	}
	return fmt.Errorf("%s: %s belongs to %s and is closed to user %d: as root, use %s", f.key, f.path, owner, euid, remedy)
}

// userName is the name of a user, "" where it has none here.
func userName(uid int) string {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return ""
	}
	return u.Username
}
