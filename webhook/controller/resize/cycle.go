package resize

import (
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/profile"
	plan "plimsoll.dev/pkg/resize"
)

// shortly is when to look again after something that passes by itself.
const shortly = time.Second

// refusedFor is how long a change the API server refused is not tried again,
// unless the pod changes.
const refusedFor = 10 * time.Minute

// cycle is one look at a profile's pods.
type cycle struct {
	c        *Controller
	profile  *v1alpha1.WorkloadProfile
	gather   *gatherer
	slots    slots
	pods     int // of mode resize
	flying   int // resizes on their way, all replicas'
	mine     int // of them this replica's
	records  []plan.Record
	own      []candidate
	others   []candidate // another replica's to resize
	counts   map[plan.Reason]int
	failures int // API calls in a row that failed
}

// candidate is a pod that is to be resized.
type candidate struct {
	pod   *corev1.Pod
	since time.Time // seen waiting for another replica
}

// Reconcile runs one cycle of a profile.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	wp := &v1alpha1.WorkloadProfile{}
	if err := c.Client.Get(ctx, req.NamespacedName, wp); err != nil {
		c.Metrics.forget(req.Name)
		c.book.queue(req.Name, false)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !wp.DeletionTimestamp.IsZero() || wp.Spec.Identity.PolicyRef == nil {
		c.Metrics.forget(req.Name)
		return reconcile.Result{}, nil
	}
	err := c.run(ctx, wp)
	if errors.Is(err, errNotActive) {
		return reconcile.Result{RequeueAfter: shortly}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: c.next(wp.Name)}, nil
}

// next is the interval, different by up to a tenth from profile to profile so
// that they spread.
func (c *Controller) next(profile string) time.Duration {
	h := fnv.New32a()
	h.Write([]byte(profile))
	return c.Interval*9/10 + c.Interval/5*time.Duration(h.Sum32()%1000)/1000
}

func (c *Controller) run(ctx context.Context, wp *v1alpha1.WorkloadProfile) error {
	if !c.active() {
		return errNotActive
	}
	cy, err := c.begin(ctx, wp)
	if err != nil || cy == nil {
		return err
	}
	if stop, err := c.suspended(ctx); err != nil || stop {
		if stop {
			c.Metrics.pods.set(wp.Name, map[plan.Reason]int{plan.ReasonSuspended: cy.pods})
		}
		return err
	}
	chosen := cy.choose()
	if cy.gather.settings.Resize.DryRun {
		err = cy.rehearse(ctx, chosen)
	} else {
		err = cy.resize(ctx, chosen)
	}
	c.Metrics.pods.set(wp.Name, cy.counts)
	if err != nil {
		return err
	}
	return cy.sumUp(ctx)
}

// begin takes the snapshot a cycle decides from; nil when no policy is known.
func (c *Controller) begin(ctx context.Context, wp *v1alpha1.WorkloadProfile) (*cycle, error) {
	index := c.Policies.Get()
	if index == nil {
		return nil, errNotActive // policies have not been seen yet
	}
	governing, ok := index.Load(*wp.Spec.Identity.PolicyRef)
	if !ok {
		c.Metrics.pods.set(wp.Name, nil)
		return nil, nil
	}
	pods, err := c.Pods.OfProfile(ctx, wp.Name)
	if err != nil {
		return nil, err
	}
	live, err := c.live.of(ctx, wp.Spec.Identity.MeasurementHash, c.Now())
	if err != nil {
		log.FromContext(ctx).V(1).Info("live use cannot be read, memory is not lowered", "error", err.Error())
	}
	cy := &cycle{c: c, profile: wp, counts: map[plan.Reason]int{}, gather: &gatherer{
		c: c, settings: &governing.Settings, profile: &wp.Status, live: live,
		spaces: map[string]*space{}, nodes: map[string]plan.Node{},
	}}
	ref := profile.FormatRef(*wp.Spec.Identity.PolicyRef)
	var eligible []*corev1.Pod
	for i := range pods {
		p := &pods[i]
		if resizes(p) && p.Annotations[v1alpha1.AnnotationPolicyRef] == ref && p.DeletionTimestamp == nil {
			eligible = append(eligible, p)
		}
	}
	cy.pods = len(eligible)
	cy.slots = c.slotsOf(wp.Name, governing.Settings.Resize.MaxConcurrent.Of(cy.pods), cy.pods)
	for _, p := range eligible {
		if err := cy.look(ctx, p); err != nil {
			return nil, err
		}
	}
	return cy, nil
}

// resizes reports whether a pod's mode lets it be resized.
func resizes(pod *corev1.Pod) bool {
	m, ok := v1alpha1.ParseMode(pod.Labels[v1alpha1.LabelMode])
	return ok && m.Resizes()
}

// look sorts a pod in: on its way, to be resized by us or by another, or not.
func (cy *cycle) look(ctx context.Context, pod *corev1.Pod) error {
	c := cy.c
	r := c.record(pod)
	cy.records = append(cy.records, r)
	if c.book.flying(pod.UID) || plan.Observe(pod).InFlight() {
		cy.flying++
		cy.counts[plan.ReasonInFlight]++
		if by, _, ok := plan.LastBy(pod); c.book.flying(pod.UID) || ok && by == c.Replica {
			cy.mine++
		}
		return nil
	}
	server := c.server(podKey(pod), cy.slots)
	if server != c.Replica && cy.slots.first != c.Replica {
		return nil
	}
	d, err := cy.plan(ctx, pod)
	switch {
	case err != nil:
		return err
	case d.Reason != plan.ReasonChange:
		c.book.served(pod.UID)
		if server == c.Replica {
			cy.counts[d.Reason]++
		}
	case server == c.Replica:
		cy.own = append(cy.own, candidate{pod: pod})
	default:
		cy.others = append(cy.others, candidate{pod: pod, since: c.book.waits(pod.UID, c.Now())})
	}
	return nil
}

func (cy *cycle) plan(ctx context.Context, pod *corev1.Pod) (plan.Decision, error) {
	if cy.c.Now().Before(cy.c.book.refusedUntil(pod.UID, pod.Generation)) {
		return plan.Decision{Reason: plan.ReasonRefused}, nil
	}
	return cy.gather.decide(ctx, pod)
}

// choose returns this replica's candidates, and of the other replicas' those
// that have waited too long for their own: one of the policy's intervals if
// this replica has none itself, else two.
func (cy *cycle) choose() []candidate {
	patience := 2 * cy.gather.settings.Resize.Interval
	if len(cy.own) == 0 {
		patience /= 2
	}
	chosen := cy.own
	for _, o := range cy.others {
		if cy.c.Now().Sub(o.since) >= patience {
			chosen = append(chosen, o)
		}
	}
	return chosen
}

// budget returns how many resizes may start now, and why not more.
func (cy *cycle) budget() (int, plan.Reason) {
	n := min(cy.slots.mine-cy.mine, cy.slots.total-cy.flying)
	s := cy.gather.settings.Resize
	var wave time.Time
	if cy.profile.Status.UpdatedAt != nil {
		wave = cy.profile.Status.UpdatedAt.Time
	}
	if more, reason := plan.Canary(cy.records, cy.pods, s.CanaryFraction, s.CanaryWatch, wave, cy.c.Now()); more >= 0 && more < n {
		if reason == "" {
			reason = plan.ReasonCanary
		}
		return more, reason
	}
	return max(0, n), plan.ReasonBudget
}

// maxFailures is how many API calls in a row may fail before a cycle ends.
const maxFailures = 3

// resize sends the candidates' resizes one after another until the budget is
// used up. What happens to one pod never keeps the others from their turn.
func (cy *cycle) resize(ctx context.Context, chosen []candidate) error {
	left, why := cy.budget()
	cy.c.book.queue(cy.profile.Name, len(chosen) > left) // before anything is sent, so that no end is missed
	for i, cand := range chosen {
		if left <= 0 {
			cy.counts[why] += len(chosen) - i
			break
		}
		if !cy.c.active() {
			return errNotActive
		}
		if stop, err := cy.c.suspended(ctx); err != nil || stop {
			return err
		}
		sent, reason, err := cy.one(ctx, cand.pod)
		if err != nil {
			// Whether the API server acted is not known; the next look at the pod tells.
			cy.failures++
			log.FromContext(ctx).Error(err, "a resize failed, going on with the next pod")
			if cy.failures >= maxFailures {
				return err
			}
			continue
		}
		cy.failures = 0
		if sent {
			left--
		}
		if reason == plan.ReasonPeer || reason == plan.ReasonConflict {
			pause(ctx, rand.N(20*time.Millisecond))
		}
		cy.counts[reason]++
	}
	return nil
}

// one plans a pod anew, with what the cycle has spent, and sends it.
func (cy *cycle) one(ctx context.Context, pod *corev1.Pod) (sent bool, _ plan.Reason, _ error) {
	c := cy.c
	release, ok := c.book.reserve(pod.UID)
	if !ok {
		return false, plan.ReasonInFlight, nil
	}
	defer release()
	if c.book.flying(pod.UID) { // by another goroutine since the cycle began
		return false, plan.ReasonInFlight, nil
	}
	d, err := cy.plan(ctx, pod)
	if err != nil || d.Reason != plan.ReasonChange {
		return false, d.Reason, err
	}
	a, err := c.send(ctx, pod, d.Changes, cy.gather.settings.Resize.Interval)
	if err != nil {
		return false, "", err
	}
	c.book.served(pod.UID)
	if a.reason != "" {
		c.Metrics.outcome(cy.profile.Name, a.reason)
		return false, a.reason, c.turnedDown(ctx, pod, a)
	}
	cy.gather.spend(pod, d.Changes)
	c.Metrics.outcome(cy.profile.Name, plan.ReasonChange)
	c.sentNow(pod, a.pod, cy.profile.Name, plan.Begin(pod, c.Replica, d, cy.gather.live[string(pod.UID)], c.record(pod), c.Now()))
	return true, plan.ReasonChange, nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
