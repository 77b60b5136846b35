package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"plimsoll.dev/pkg/store"
	"plimsoll.dev/test/env"
)

func TestConfig(t *testing.T) {
	type meaning struct {
		Addrs                  []string
		User, Password, Master string
		DB                     int
		TLS, Cluster           bool
	}
	tests := map[string]struct {
		config store.Config
		want   meaning
		err    string
	}{
		"host":            {config: store.Config{URL: "redis://r"}, want: meaning{Addrs: []string{"r:6379"}}},
		"everything":      {config: store.Config{URL: "rediss://u:p%40ss@r:7000/3"}, want: meaning{Addrs: []string{"r:7000"}, User: "u", Password: "p@ss", DB: 3, TLS: true}},
		"password only":   {config: store.Config{URL: "redis://:secret@r"}, want: meaning{Addrs: []string{"r:6379"}, Password: "secret"}},
		"from a Secret":   {config: store.Config{URL: "redis://a:b@r", Username: "c", Password: "d"}, want: meaning{Addrs: []string{"r:6379"}, User: "c", Password: "d"}},
		"IPv6":            {config: store.Config{URL: "redis://[::1]:7000,[::2]"}, want: meaning{Addrs: []string{"[::1]:7000", "[::2]:6379"}, Cluster: true}},
		"cluster":         {config: store.Config{URL: "redis://a:1,b:2"}, want: meaning{Addrs: []string{"a:1", "b:2"}, Cluster: true}},
		"cluster by mode": {config: store.Config{URL: "redis://a?mode=cluster"}, want: meaning{Addrs: []string{"a:6379"}, Cluster: true}},
		"Sentinel":        {config: store.Config{URL: "redis://a:26379,b:26379/1?master=m"}, want: meaning{Addrs: []string{"a:26379", "b:26379"}, Master: "m", DB: 1}},
		"no scheme":       {config: store.Config{URL: "r:6379"}, err: "no scheme"},
		"other scheme":    {config: store.Config{URL: "http://r"}, err: `scheme "http" is not known`},
		"no host":         {config: store.Config{URL: "redis:///1"}, err: "is not host or host:port"},
		"two colons":      {config: store.Config{URL: "redis://a:1:2"}, err: "is not host or host:port"},
		"bad database":    {config: store.Config{URL: "redis://r/x"}, err: "not a database number"},
		"cluster with db": {config: store.Config{URL: "redis://a,b/1"}, err: "database 0 only"},
		"both":            {config: store.Config{URL: "redis://a?master=m&mode=cluster"}, err: "exclude each other"},
		"unknown option":  {config: store.Config{URL: "redis://a?x=y"}, err: "option x=y is not known"},
		"bad escape":      {config: store.Config{URL: "redis://u:%zz@r"}, err: "not percent-encoded"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got meaning
			var err error
			got.Addrs, got.User, got.Password, got.Master, got.DB, got.TLS, got.Cluster, _, err = store.OptionsOf(tc.config)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestConfigErrorsDoNotShowThePassword(t *testing.T) {
	for _, url := range []string{"redis://u:hunter2@:::", "ftp://u:hunter2@r", "redis://u:hunter2@r/x", "redis://u:hunter2@r?a=b"} {
		if _, err := store.Open(store.Config{URL: url}); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add("redis://u:p@a:1,b:2/3?master=m")
	f.Add("rediss://[::1]")
	f.Fuzz(func(t *testing.T, url string) {
		addrs, _, _, _, _, _, _, timeout, err := store.OptionsOf(store.Config{URL: url})
		if err == nil && (len(addrs) == 0 || timeout != 3*time.Second) {
			t.Fatalf("%q was accepted with addresses %q and timeout %v", url, addrs, timeout)
		}
	})
}

func TestPingSaysWhatToDo(t *testing.T) {
	r := env.StartRedis(t, env.RedisOptions{Password: "right"})
	for name, tc := range map[string]struct{ url, want string }{
		"wrong password": {"redis://:wrong@" + r.Addr(), "correct the Secret"},
		"no password":    {"redis://" + r.Addr(), "set it in the Secret"},
		"no TLS there":   {"rediss://:right@" + r.Addr(), "use redis:// instead of rediss://"},
		"not a cluster":  {"redis://:right@" + r.Addr() + "?mode=cluster", "not a cluster"},
		"nobody there":   {"redis://127.0.0.1:1", "reachable from here"},
		"right":          {"redis://:right@" + r.Addr(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := store.Open(store.Config{URL: tc.url, Timeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			err = s.Ping(t.Context())
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
