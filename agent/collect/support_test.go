package collect_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/resource"
)

// gather collects everything once, failing on inconsistent metrics, and returns the names.
func gather(t *testing.T, c prometheus.Collector) (names []string) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		names = append(names, f.GetName())
	}
	return names
}

func resourceMiB(n int64) *resource.Quantity { return resource.NewQuantity(n<<20, resource.BinarySI) }
