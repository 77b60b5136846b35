package profile_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/store"
	"plimsoll.dev/test/env"
)

// A profile takes exactly its own keys with it, whatever Redis is like.
func TestPurgeOfOneSibling(t *testing.T) {
	type server interface {
		Do(args ...string) (string, error)
	}
	tests := map[string]func(t *testing.T) (url string, of func(key string) server){
		"single": func(t *testing.T) (string, func(string) server) {
			r := env.StartRedis(t, env.RedisOptions{})
			return "redis://" + r.Addr(), func(string) server { return r }
		},
		"full": func(t *testing.T) (string, func(string) server) {
			r := env.StartRedis(t, env.RedisOptions{MaxMemory: "8mb"})
			return "redis://" + r.Addr(), func(string) server { return r }
		},
		"cluster": func(t *testing.T) (string, func(string) server) {
			c := env.StartRedisCluster(t, env.RedisClusterOptions{})
			return "redis://" + strings.Join(c.Addrs(), ",") + "?mode=cluster", func(key string) server { return c.PrimaryOf(key) }
		},
	}
	for name, run := range tests {
		t.Run(name, func(t *testing.T) {
			url, of := run(t)
			s, err := store.Open(store.Config{URL: url})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			w := startReplica(t, replica{purger: s})
			other := w.newNamespace(nil)
			w.namespaced(other, "own", 0)
			here, there := w.newPod("here", shop(v1alpha1.ModeMeasure)), pod(other, "there", shop(v1alpha1.ModeMeasure))
			w.create(there)
			goes := w.profile(w.stamped(here, "nopolicy"))
			stays := w.profile(w.stamped(there, "ResourcePolicy/"+other+"/own"))
			w.profileWith(goes.Name, 1, v1alpha1.ProfileLearning)
			w.deletePod(here)
			w.profileWith(goes.Name, 0, v1alpha1.ProfileOrphaned)

			gone, kept := keys(goes.Spec.Identity.MeasurementHash), keys(stays.Spec.Identity.MeasurementHash)
			for _, key := range append(gone, kept...) {
				if _, err := of(key).Do("HSET", key, "app", "x"); err != nil {
					t.Fatal(err)
				}
			}
			for i := 0; name == "full"; i++ {
				if _, err := of("").Do("SET", fmt.Sprint("fill", i), strings.Repeat("x", 100<<10)); err != nil {
					break
				}
			}
			w.must(w.c.Delete(t.Context(), goes))
			w.gone(goes.Name)
			for want, keys := range map[string][]string{"0": gone, "1": kept} {
				for _, key := range keys {
					if got, err := of(key).Do("EXISTS", key); err != nil || strings.TrimSpace(got) != want {
						t.Errorf("EXISTS %s = %s, %v, want %s", key, got, err, want)
					}
				}
			}
		})
	}
}

// keys are some of a profile's keys, as pkg/store/keys.go lays them out.
func keys(hash string) []string {
	hour := store.HourOf(time.Now())
	var out []string
	for _, rest := range []string{"live", "oom", "h:" + strconv.FormatInt(hour, 10), "h:" + strconv.FormatInt(hour-100, 10), "b:" + strconv.FormatInt(hour/6*6-120, 10)} {
		out = append(out, "plimsoll:1:{"+hash+"}:"+rest)
	}
	return out
}
