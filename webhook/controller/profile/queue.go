package profile

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// queue adds to a controller's work from outside its watches. It is a source of
// the controller whose queue it hands out.
type queue struct {
	started chan struct{}
	work    workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func newQueue() *queue { return &queue{started: make(chan struct{})} }

// source gives the queue to its controller.
func (q *queue) source() source.Source {
	return source.Func(func(_ context.Context, work workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		q.work = work
		close(q.started)
		return nil
	})
}

// add waits until the controller runs.
func (q *queue) add(ctx context.Context, requests ...reconcile.Request) error {
	select {
	case <-q.started:
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, r := range requests {
		q.work.Add(r)
	}
	return nil
}
