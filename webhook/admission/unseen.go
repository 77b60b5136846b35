package admission

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/profile"
	profilecontroller "plimsoll.dev/webhook/controller/profile"
)

// unseenQuiet is the least time between two log lines about unseen pods.
const unseenQuiet = time.Minute

// Unseen notices enrolled pods that appear without a stamp: the API server did
// not call the webhook, or had no answer in time. It fails open, so nothing else
// would tell.
type Unseen struct {
	resolver *profilecontroller.Resolver
	pods     prometheus.Counter
	log      logr.Logger

	mu   sync.Mutex
	said time.Time
}

// WatchUnseen follows the pods of a cache.
func WatchUnseen(ctx context.Context, c cache.Cache, resolver *profilecontroller.Resolver, r prometheus.Registerer, log logr.Logger) error {
	u := &Unseen{resolver: resolver, log: log, pods: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "plimsoll_admission_unseen_pods_total",
		Help: "Enrolled pods that appeared without admission's stamp; each replica counts all it sees appear.",
	})}
	r.MustRegister(u.pods)
	informer, err := c.GetInformer(ctx, &corev1.Pod{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		if pod, ok := o.(*corev1.Pod); ok && pod.Annotations[v1alpha1.AnnotationPolicyRef] == "" && profile.Live(pod) {
			u.see(ctx, pod)
		}
	}})
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	return nil
}

func (u *Unseen) see(ctx context.Context, pod *corev1.Pod) {
	config, err := u.resolver.Config(ctx)
	if err != nil || config.Suspended != nil && *config.Suspended {
		return // admission passes pods untouched
	}
	site, err := u.resolver.Site(ctx, pod, pod.Namespace)
	if err != nil {
		return // the controllers meet the same error and report it
	}
	if mode, _ := profile.Enrolment(pod, site); !mode.Measures() {
		return
	}
	u.pods.Inc()
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := time.Now(); now.Sub(u.said) > unseenQuiet {
		u.said = now
		u.log.Info("an enrolled pod was created that admission never saw: check that the webhook configurations reach this service "+
			"and that its replicas are ready; the controllers stamp the pod", "namespace", pod.Namespace, "pod", pod.Name)
	}
}
