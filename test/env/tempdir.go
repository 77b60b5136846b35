package env

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// tempDir makes a folder that is in use until remove is called or this process
// dies. It first removes those of the same kind that died with their process:
// etcd alone leaves 128 MB each time.
func tempDir(kind string) (dir string, remove func(), err error) {
	prefix := "plimsoll-" + kind + "-"
	left, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return "", nil, fmt.Errorf("listing temporary folders: %w", err)
	}
	for _, old := range left {
		if info, err := os.Stat(old); err != nil || time.Since(info.ModTime()) < time.Minute {
			continue // just made, perhaps not locked yet
		}
		if unlock, err := lockDir(old, os.O_RDWR); err == nil {
			_ = os.RemoveAll(old) // somebody else's, perhaps: it harms nothing
			unlock()
		}
	}
	dir, err = os.MkdirTemp("", prefix)
	if err != nil {
		return "", nil, fmt.Errorf("making a temporary folder: %w", err)
	}
	unlock, err := lockDir(dir, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return "", nil, err
	}
	return dir, func() {
		_ = os.RemoveAll(dir) // what is left goes at the next start
		unlock()
	}, nil
}

// lockDir takes the lock of a folder of tempDir, or fails if a living process
// has it.
func lockDir(dir string, flags int) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of a temporary folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}
