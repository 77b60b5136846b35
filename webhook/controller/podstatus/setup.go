// Package podstatus turns what every webhook replica and every agent says into
// the status of policies and of the installation.
//
// Each replica writes one PolicyPodStatus per policy, which only it writes. The
// replica that owns a policy by the ring writes the policy's status from all of
// them. The ring takes the place of an elected leader: it has one owner per
// policy at a time, needs no Lease of its own, and moves on as soon as a replica
// goes; if two should write for a moment, both write the same, and the slower is
// refused by the version it read.
package podstatus

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/podstatus"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/profile"
)

// Ring says which replica owns a key, and which replicas there are;
// *membership.Membership is one.
type Ring interface {
	// Owns reports whether this replica owns a key and may act on it.
	Owns(key string) bool
	// Members returns the names of the replicas alive.
	Members() []string
	// Subscribe returns a channel that delivers a value after either has changed.
	Subscribe() <-chan struct{}
}

// Deps is what the controllers need beside the manager.
type Deps struct {
	// Policies are those this replica works by.
	Policies *policy.Holder
	// Namespace is Plimsoll's own, where the reports live.
	Namespace string
	// Replica is the name of this replica's pod, and PodUID its UID, empty if it
	// is not known. Without a name this process is alone and writes directly.
	Replica string
	PodUID  types.UID
	// Ring shares the policies among the replicas; nil when this process is alone.
	Ring Ring
	// Recorder records when replicas begin and cease to be of one mind about a policy.
	Recorder events.EventRecorder
	// GatherPods is how long changes of pods are gathered before they are counted
	// again, zero for five minutes: in a busy cluster every count of every replica
	// is a write.
	GatherPods time.Duration
	// GatherAgents is how long agents' reports are gathered, zero for ten seconds.
	GatherAgents time.Duration
	// Now tells the time; nil is time.Now.
	Now func() time.Time
}

const (
	policyWorkers = 4
	// gather is how long the reports of replicas are gathered into one aggregate.
	gather = 500 * time.Millisecond
	// patience is how long a replica may take to report before the policy's
	// status says that it has not.
	patience = 10 * time.Second
	// alone names this process where it stands for a pod.
	alone = "webhook"
)

// Names of indexes.
const (
	podsByPolicy    = "plimsoll.policy"
	reportsByPolicy = "plimsoll.parent"
)

type work = workqueue.TypedRateLimitingInterface[reconcile.Request]

// SetupWithManager adds the controllers to a manager whose cache holds
// PolicyPodStatuses, AgentStatuses and DaemonSets of Plimsoll's namespace alone.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, d Deps) error {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.GatherPods == 0 {
		d.GatherPods = 5 * time.Minute
	}
	if d.GatherAgents == 0 {
		d.GatherAgents = 10 * time.Second
	}
	opinions := &opinions{policies: d.Policies, reader: mgr.GetClient()}
	parts := []interface{ setup(ctrl.Manager) error }{
		&agentReconciler{Deps: d, client: mgr.GetClient(), live: mgr.GetAPIReader()},
	}
	if d.Replica == "" || d.Ring == nil {
		parts = append(parts, &aggregator{
			Deps: d, client: mgr.GetClient(), live: mgr.GetAPIReader(), source: opinions.alone, since: map[reconcile.Request]time.Time{},
		})
	} else {
		if err := index(ctx, mgr); err != nil {
			return err
		}
		reported := &reported{namespace: d.Namespace, reader: mgr.GetClient(), ring: d.Ring}
		parts = append(parts,
			&replicaReconciler{Deps: d, client: mgr.GetClient(), live: mgr.GetAPIReader(), opinions: opinions},
			&aggregator{
				Deps: d, client: mgr.GetClient(), live: mgr.GetAPIReader(), source: reported.gather, since: map[reconcile.Request]time.Time{},
			})
	}
	for _, p := range parts {
		if err := p.setup(mgr); err != nil {
			return fmt.Errorf("setting up statuses: %w", err)
		}
	}
	return nil
}

func index(ctx context.Context, mgr ctrl.Manager) error {
	byPolicy := func(o client.Object) []string {
		if pod, ok := o.(*corev1.Pod); ok {
			if ref := governs(pod); ref != "" {
				return []string{ref}
			}
		}
		return nil
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, podsByPolicy, byPolicy); err != nil {
		return fmt.Errorf("indexing pods by policy: %w", err)
	}
	byParent := func(o client.Object) []string {
		if s, ok := o.(*v1alpha1.PolicyPodStatus); ok {
			if ref, err := podstatus.Parent(s); err == nil {
				return []string{profile.FormatRef(ref)}
			}
		}
		return nil
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.PolicyPodStatus{}, reportsByPolicy, byParent); err != nil {
		return fmt.Errorf("indexing reports by policy: %w", err)
	}
	return nil
}

// governs returns the reference of the policy recorded on a pod that counts, "" for none.
func governs(pod *corev1.Pod) string {
	if ref := pod.Annotations[v1alpha1.AnnotationPolicyRef]; ref != profile.NoPolicy && profile.Live(pod) {
		return ref
	}
	return ""
}

// owns reports whether this replica writes the status of something.
func (d *Deps) owns(key string) bool { return d.Ring == nil || d.Ring.Owns(key) }

// options run a controller in every replica.
func options(workers int) controller.Options {
	everywhere := false
	return controller.Options{NeedLeaderElection: &everywhere, MaxConcurrentReconciles: workers}
}

// rebalanced has everything looked at again after the replicas have changed.
func (d *Deps) rebalanced(all func(context.Context) ([]reconcile.Request, error)) source.Source {
	return source.Func(func(ctx context.Context, q work) error {
		if d.Ring == nil {
			return nil
		}
		changes := d.Ring.Subscribe()
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-changes:
				}
				requests, err := all(ctx)
				if err != nil {
					ctrl.LoggerFrom(ctx).Error(err, "looking at all statuses again failed, the next change of replicas tries again")
				}
				for _, r := range requests {
					q.AddAfter(r, gather)
				}
			}
		}()
		return nil
	})
}

// requestOf and refOf: a ClusterResourcePolicy's request has no namespace.
func requestOf(ref v1alpha1.PolicyReference) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}}
}

func refOf(r reconcile.Request) v1alpha1.PolicyReference {
	if r.Namespace == "" {
		return v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: r.Name}
	}
	return v1alpha1.PolicyReference{Kind: v1alpha1.KindResourcePolicy, Namespace: r.Namespace, Name: r.Name}
}

// parent is a policy of either kind as far as its status goes.
type parent struct {
	client.Object
	status *v1alpha1.ResourcePolicyStatus
}

// getParent reads a policy; the error is client.Reader's own.
func getParent(ctx context.Context, reader client.Reader, r reconcile.Request) (parent, error) {
	if r.Namespace == "" {
		p := &v1alpha1.ClusterResourcePolicy{}
		err := reader.Get(ctx, r.NamespacedName, p)
		return parent{p, &p.Status}, err
	}
	p := &v1alpha1.ResourcePolicy{}
	err := reader.Get(ctx, r.NamespacedName, p)
	return parent{p, &p.Status}, err
}
