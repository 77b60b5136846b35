package guest_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"plimsoll.dev/test/kernel/guest"
)

func TestFetchTakesTheNewestOfTheCache(t *testing.T) {
	cache := t.TempDir()
	for _, dir := range []string{
		"6.1.0-57-cloud-amd64", "6.12.9+deb12-cloud-amd64", "6.12.117+deb12-cloud-amd64", "6.12.100+deb12-cloud-amd64", "fetching-1",
	} {
		if err := os.Mkdir(filepath.Join(cache, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for series, want := range map[string]string{"6.12": "6.12.117+deb12-cloud-amd64", "6.1": "6.1.0-57-cloud-amd64"} {
		k, err := guest.Fetch(context.Background(), cache, series)
		if err != nil || k.Release != want {
			t.Errorf("kernel %s: got %q, %v; want %q", series, k.Release, err, want)
		}
	}
}
