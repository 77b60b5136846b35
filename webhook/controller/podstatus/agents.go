package podstatus

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/podstatus"
)

const (
	kindConfig = "PlimsollConfig"
	// agentsManager owns PlimsollConfig's status.agents.
	agentsManager = "plimsoll-agents"
	// configKey is what the ring shares the summary by.
	configKey = kindConfig + "/" + v1alpha1.ConfigName
)

var config = reconcile.Request{NamespacedName: client.ObjectKey{Name: v1alpha1.ConfigName}}

// agentReconciler sums up what the agents say.
type agentReconciler struct {
	Deps
	client client.Client
	live   client.Reader
}

func (r *agentReconciler) setup(mgr ctrl.Manager) error {
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	wanted := builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		a, aok := e.ObjectOld.(*appsv1.DaemonSet)
		b, bok := e.ObjectNew.(*appsv1.DaemonSet)
		return aok && bok && a.Status.DesiredNumberScheduled != b.Status.DesiredNumberScheduled
	}})
	return ctrl.NewControllerManagedBy(mgr).Named("agents").
		WithOptions(options(1)).
		Watches(&v1alpha1.AgentStatus{}, r.later()).
		Watches(&appsv1.DaemonSet{}, r.later(), wanted).
		Watches(&v1alpha1.PlimsollConfig{}, r.later(), changed).
		WatchesRawSource(r.rebalanced(func(context.Context) ([]reconcile.Request, error) { return []reconcile.Request{config}, nil })).
		Complete(r)
}

// later enqueues the one request after a while, whatever happened: heartbeats of
// many agents become one look at all.
func (r *agentReconciler) later() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, _ event.CreateEvent, q work) { q.AddAfter(config, r.GatherAgents) },
		UpdateFunc: func(_ context.Context, _ event.UpdateEvent, q work) { q.AddAfter(config, r.GatherAgents) },
		DeleteFunc: func(_ context.Context, _ event.DeleteEvent, q work) { q.AddAfter(config, r.GatherAgents) },
	}
}

// Reconcile writes the summary of all agents if that is news, and comes back
// when the first of them may have fallen silent.
func (r *agentReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if !r.owns(configKey) {
		return reconcile.Result{}, nil
	}
	var agents v1alpha1.AgentStatusList
	if err := r.client.List(ctx, &agents, client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing AgentStatuses: %w", err)
	}
	expected, err := r.expected(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	now := r.Now()
	summary, next := podstatus.SummariseAgents(expected, agents.Items, now)
	if err := r.write(ctx, summary); err != nil {
		return reconcile.Result{}, fmt.Errorf("writing the summary of agents: %w", err)
	}
	if next.IsZero() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: max(next.Sub(now), r.GatherAgents)}, nil
}

// expected is how many agents the DaemonSet wants, -1 when there is none.
func (r *agentReconciler) expected(ctx context.Context) (int, error) {
	var sets appsv1.DaemonSetList
	if err := r.client.List(ctx, &sets, client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("listing DaemonSets: %w", err)
	}
	n := -1
	for i := range sets.Items {
		labels := sets.Items[i].Spec.Template.Labels
		if labels["app.kubernetes.io/name"] == "plimsoll" && labels["app.kubernetes.io/component"] == "agent" {
			n = max(n, 0) + int(sets.Items[i].Status.DesiredNumberScheduled)
		}
	}
	return n, nil
}

func (r *agentReconciler) write(ctx context.Context, summary v1alpha1.AgentsSummary) error {
	var cached v1alpha1.PlimsollConfig
	if err := r.client.Get(ctx, config.NamespacedName, &cached); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !news(cached.Status.Agents, summary) {
		return nil
	}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var c v1alpha1.PlimsollConfig
		if err := r.live.Get(ctx, config.NamespacedName, &c); err != nil {
			return err
		}
		if !news(c.Status.Agents, summary) {
			return nil
		}
		return applyStatus(ctx, r.client, kindConfig, &c, agentsManager, &v1alpha1.PlimsollConfigStatus{Agents: &summary})
	})
	return client.IgnoreNotFound(err)
}

// news reports whether a summary differs from the one written; none says as much as that of no agents.
func news(written *v1alpha1.AgentsSummary, s v1alpha1.AgentsSummary) bool {
	if written == nil {
		written = &v1alpha1.AgentsSummary{}
	}
	return !equality.Semantic.DeepEqual(*written, s)
}
