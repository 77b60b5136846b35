package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/agent/cgroup"
	"plimsoll.dev/agent/collect"
	"plimsoll.dev/agent/discovery"
	"plimsoll.dev/agent/status"
	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/version"
)

const (
	// lastFlush bounds the write at the end; a pod has 30 s to go.
	lastFlush = 10 * time.Second
	// stalled is after how long without a look at the containers the agent counts as hung.
	stalled = 2 * time.Minute
)

// run measures until ctx is done, then writes what it has.
func run(ctx context.Context, o *options, log *slog.Logger) error {
	files, err := o.openCgroups()
	if err != nil {
		return err
	}
	redis, err := o.openStore()
	if err != nil {
		return err
	}
	defer redis.Close()
	config, err := restConfig(o.kubeconfig)
	if err != nil {
		return err
	}
	objects, err := newCache(config, o.node)
	if err != nil {
		return err
	}
	listener, err := listen(ctx, o.listen)
	if err != nil {
		return err
	}
	checkpoint, err := openCheckpoint(ctx, o.checkpoint, log)
	if err != nil {
		return err
	}
	if checkpoint != nil {
		defer checkpoint.Close()
	}

	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a := &agent{
		log: log, objects: objects,
		found:    discovery.New(discovery.NewTree(files.Tree())),
		policies: newPolicies(o.interval, o.flush),
		store:    newWatchedStore(redis, registry, log),
	}
	if err := a.assemble(o, files, checkpoint); err != nil {
		return err
	}
	registry.MustRegister(a.loop, spool{a.accumulator})
	if a.reporter, err = newReporter(config, o, a, files.Mode()); err != nil {
		return err
	}

	log.Info("starting", "version", version.Version, "node", o.node, "cgroups", files.Mode(), "root", files.Root())
	err = a.run(ctx, listener, newHandler(registry, a.loop, a.health()))
	log.Info("stopped")
	return err
}

// agent is the running parts.
type agent struct {
	log         *slog.Logger
	objects     cache.Cache
	found       *discovery.Discovery
	policies    *policies
	store       *watchedStore
	loop        *collect.Loop
	accumulator *collect.Accumulator
	reporter    *status.Reporter // nil when no status is kept

	synced atomic.Bool
}

// run keeps all parts running until ctx is done or one fails; no listener means that nothing is served.
func (a *agent) run(ctx context.Context, listener net.Listener, handler http.Handler) error {
	group, running := errgroup.WithContext(ctx)
	if listener != nil {
		group.Go(func() error { return serve(running, listener, handler) })
	}
	group.Go(func() error { return a.watch(running) })
	group.Go(func() error { a.store.connect(running); return nil })
	group.Go(func() error { a.measure(running); return nil })
	if a.reporter != nil {
		group.Go(func() error { a.reporter.Run(running); return nil })
	}
	return group.Wait()
}

// assemble makes the loop and the accumulator, which know each other: the loop adds to the accumulator, and the
// accumulator asks the loop what else to write and how often.
func (a *agent) assemble(o *options, files cgroup.FS, checkpoint *collect.Checkpoint) error {
	reports := &struct{ *collect.Loop }{} // filled in before either runs
	accumulator, err := collect.NewAccumulator(collect.AccumulatorOptions{
		Agent: o.node, Store: a.store, Checkpoint: checkpoint, Reporter: reports,
		FlushEvery: func(hash string) time.Duration { return reports.FlushEvery(hash) },
	})
	if accumulator == nil {
		return err
	}
	if err != nil {
		a.log.Error("checkpoint not restored: what Redis did not have of it is lost", "error", err)
	}
	a.accumulator = accumulator
	a.loop = collect.NewLoop(files, a.found, a.policies, accumulator, collect.Options{Interval: o.interval, CPUBudget: o.budget}, a.log)
	reports.Loop = a.loop
	return nil
}

// measure samples until ctx is done. Only when no sample can come any more is everything written for the last time.
func (a *agent) measure(ctx context.Context) {
	flushing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.accumulator.Run(flushing, lastFlush, a.flushFailed())
	}()
	a.loop.Run(ctx)
	stop()
	<-done
}

// flushFailed returns a function that logs why a flush failed unless it is Redis, whose state is told elsewhere.
func (a *agent) flushFailed() func(error) {
	told := ""
	return func(err error) {
		if text := err.Error(); a.store.ready() == nil && text != told {
			a.log.Error("writing measurements failed: they are kept and written again", "error", err)
			told = text
		}
	}
}

// watch follows pods, policies and configuration. While the API server is away the informers try on by themselves.
func (a *agent) watch(ctx context.Context) error {
	if err := a.policies.watch(ctx, a.objects); err != nil {
		return err
	}
	if _, err := a.found.Watch(ctx, a.objects); err != nil {
		return err
	}
	go func() {
		if a.objects.WaitForCacheSync(ctx) {
			a.synced.Store(true)
			a.log.Info("pods and policies known")
		}
	}()
	if err := a.objects.Start(ctx); err != nil {
		return fmt.Errorf("watching the API server: %w", err)
	}
	return nil
}

func (a *agent) health() health {
	started := time.Now()
	return health{
		alive: func() error {
			last := a.loop.LastTick()
			if last.IsZero() {
				last = started
			}
			if since := time.Since(last); since > stalled {
				return fmt.Errorf("containers were last looked at %s ago", since.Round(time.Second))
			}
			return nil
		},
		ready: map[string]func() error{
			readyRedis: a.store.ready,
			readyAPI: func() error {
				if !a.synced.Load() {
					return errors.New("pods, policies and PlimsollConfig are not all known yet: check that the CRDs are installed and the agent may list them")
				}
				return nil
			},
		},
	}
}

// newCache watches the pods of one node, the policies and the configuration, and keeps of them what is read.
func newCache(config *rest.Config, node string) (cache.Cache, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	c, err := cache.New(config, cache.Options{
		Scheme: scheme, Mapper: newMapper(),
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Field: fields.OneTermEqualSelector(discovery.NodePods, node), Transform: discovery.StripPod},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("preparing to watch the API server: %w", err)
	}
	return c, nil
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("registering kinds: %w", err)
	}
	return scheme, nil
}

// newMapper knows the few kinds that are read, so that the agent can start while the API server is away.
func newMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion, v1alpha1.GroupVersion})
	m.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	m.Add(v1alpha1.GroupVersion.WithKind("AgentStatus"), meta.RESTScopeNamespace)
	m.Add(v1alpha1.GroupVersion.WithKind(v1alpha1.KindResourcePolicy), meta.RESTScopeNamespace)
	m.Add(v1alpha1.GroupVersion.WithKind(v1alpha1.KindClusterResourcePolicy), meta.RESTScopeRoot)
	m.Add(v1alpha1.GroupVersion.WithKind("PlimsollConfig"), meta.RESTScopeRoot)
	return m
}

// restConfig reads a kubeconfig, or the service account where none is named.
func restConfig(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		if kubeconfig == "" {
			return nil, fmt.Errorf("finding the API server: %w: outside a cluster give --kubeconfig", err)
		}
		return nil, fmt.Errorf("--kubeconfig=%s: %w: give a kubeconfig file the agent can read", kubeconfig, err)
	}
	config.UserAgent = "plimsoll-agent/" + version.Version
	return config, nil
}

// openCheckpoint locks the checkpoint; nil when there is to be none.
func openCheckpoint(ctx context.Context, path string, log *slog.Logger) (*collect.Checkpoint, error) {
	if path == "" {
		return nil, nil
	}
	c, err := collect.OpenCheckpoint(ctx, path, func() {
		log.Info("waiting: another agent of this node still runs", "checkpoint", path)
	})
	if err != nil {
		return nil, fmt.Errorf("--checkpoint=%s: %w", path, err)
	}
	return c, nil
}
