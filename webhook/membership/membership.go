// Package membership knows which replicas of the webhook are alive and which
// of them owns a key. Each replica renews a Lease of its own and judges the
// others by the renewals it sees arrive, never by a clock of theirs.
package membership

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/hashring"
)

const (
	// Renew is the time between two renewals of a Lease.
	Renew = 5 * time.Second
	// Expire is how long after the last renewal seen a replica counts as alive.
	Expire = 15 * time.Second
	// Fence is how long after its own last renewal a replica may act.
	Fence = 10 * time.Second
	// LabelMember marks the Leases of replicas among others of the namespace.
	LabelMember = "plimsoll.dev/member"

	labelValue = "webhook"
	// tick is how often expiry is looked at.
	tick = time.Second
	// releaseTime bounds giving the Lease back on the way out.
	releaseTime = 3 * time.Second
)

// Options are what a membership works with.
type Options struct {
	// Client writes this replica's Lease; it must not read from a cache.
	Client client.Client
	// Cache delivers the Leases of the namespace.
	Cache     cache.Cache
	Namespace string
	// Replica is this replica's name, that of its pod; Pod's UID, when it is
	// known, makes the pod the Lease's owner, so that it goes with the pod.
	Replica string
	PodUID  types.UID
	Log     logr.Logger
	// Now tells the time, with a monotonic reading; nil is time.Now.
	Now func() time.Time
	// Renew, Expire and Fence replace the constants of those names when they
	// are not zero.
	Renew, Expire, Fence time.Duration
}

// Membership is this replica's view of all. A nil Membership stands for a
// process that is alone: it owns everything. It is safe for concurrent use.
type Membership struct {
	o Options

	mu      sync.Mutex
	seen    map[string]sight // by replica
	ring    hashring.Ring
	renewed time.Time // when the last renewal that succeeded was sent
	waitFor string    // the resourceVersion of it that the cache has to show; "" once it has
	subs    []chan struct{}
}

// sight is the last renewal of a replica that was seen.
type sight struct {
	version string    // the Lease's resourceVersion
	at      time.Time // here
}

// New returns a membership that is not running yet.
func New(o Options) (*Membership, error) {
	if o.Replica == "" || o.Namespace == "" {
		return nil, errors.New("the replica's name and namespace must be given")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	for _, d := range []struct {
		set *time.Duration
		def time.Duration
	}{{&o.Renew, Renew}, {&o.Expire, Expire}, {&o.Fence, Fence}} {
		if *d.set == 0 {
			*d.set = d.def
		}
	}
	return &Membership{o: o, seen: map[string]sight{}}, nil
}

// Self returns this replica's name, "" of a nil Membership.
func (m *Membership) Self() string {
	if m == nil {
		return ""
	}
	return m.o.Replica
}

// Active reports whether this replica may act: it has renewed its Lease lately
// and has seen the others as they were then, or later.
func (m *Membership) Active() bool {
	if m == nil {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.active()
}

func (m *Membership) active() bool {
	now, own := m.o.Now(), m.seen[m.o.Replica]
	// Not having seen its own renewals means not seeing the others' either.
	return !m.renewed.IsZero() && now.Sub(m.renewed) < m.o.Fence && now.Sub(own.at) < m.o.Fence &&
		m.waitFor == "" && m.ring.Has(m.o.Replica)
}

// Owner returns the replica that owns a key, "" when none is known.
func (m *Membership) Owner(key string) string {
	if m == nil {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ring.Owner(key)
}

// Owns reports whether this replica owns a key and may act on it.
func (m *Membership) Owns(key string) bool {
	if m == nil {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.active() && m.ring.Owner(key) == m.o.Replica
}

// Live reports whether a replica is a member now.
func (m *Membership) Live(replica string) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ring.Has(replica)
}

// Members returns the names of the replicas alive, sorted.
func (m *Membership) Members() []string {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ring.Members()
}

// Subscribe returns a channel that delivers a value after this replica may own
// other keys than before. Values that nobody waits for become one.
func (m *Membership) Subscribe() <-chan struct{} {
	if m == nil {
		return nil
	}
	c := make(chan struct{}, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subs = append(m.subs, c)
	return c
}

// NeedLeaderElection makes every replica a member.
func (m *Membership) NeedLeaderElection() bool { return false }

// Start keeps the Lease until the context ends, then gives it back.
func (m *Membership) Start(ctx context.Context) error {
	informer, err := m.o.Cache.GetInformer(ctx, &coordinationv1.Lease{})
	if err != nil {
		return fmt.Errorf("watching Leases: %w", err)
	}
	handler, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    m.seeLease,
		UpdateFunc: func(_, o any) { m.seeLease(o) },
		DeleteFunc: m.seeGone,
	})
	if err != nil {
		return fmt.Errorf("watching Leases: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(handler) }()
	defer m.release()
	clock := time.NewTicker(min(tick, m.o.Renew))
	defer clock.Stop()
	var next time.Time
	for {
		if now := m.o.Now(); !now.Before(next) && handler.HasSynced() {
			next = now.Add(m.o.Renew)
			if err := m.renew(ctx, now); err != nil && ctx.Err() == nil {
				next = now.Add(m.o.Renew / 5)
				m.o.Log.Error(err, "renewing this replica's Lease failed")
			}
		}
		m.expire()
		select {
		case <-ctx.Done():
			return nil
		case <-clock.C:
		}
	}
}

// expire drops replicas whose renewals have stopped arriving.
func (m *Membership) expire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.o.Now()
	for r, s := range m.seen {
		if now.Sub(s.at) >= m.o.Expire {
			delete(m.seen, r)
		}
	}
	m.rebuild()
}

// rebuild makes the ring of those seen and tells the subscribers if it changed.
func (m *Membership) rebuild() {
	names := make([]string, 0, len(m.seen))
	for r := range m.seen {
		names = append(names, r)
	}
	ring := hashring.New(names...)
	if ring.Equal(m.ring) {
		return
	}
	m.o.Log.Info("the replicas changed", "before", m.ring.String(), "now", ring.String())
	m.ring = ring
	m.tell()
}

func (m *Membership) tell() {
	for _, s := range m.subs {
		select {
		case s <- struct{}{}:
		default:
		}
	}
}

func (m *Membership) lease() *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: m.o.Namespace, Name: m.o.Replica, Labels: map[string]string{LabelMember: labelValue},
	}}
	if m.o.PodUID != "" {
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: m.o.Replica, UID: m.o.PodUID}}
	}
	seconds := int32(m.o.Expire / time.Second)
	l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &m.o.Replica, LeaseDurationSeconds: &seconds}
	return l
}

// renew writes the Lease, making it if it is missing. A patch needs no version:
// nobody else writes this one.
func (m *Membership) renew(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, m.o.Renew)
	defer cancel()
	l := m.lease()
	l.Spec.RenewTime = &metav1.MicroTime{Time: now}
	bare := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name}}
	err := m.o.Client.Patch(ctx, l, client.MergeFrom(bare))
	if apierrors.IsNotFound(err) {
		l = m.lease()
		l.Spec.RenewTime = &metav1.MicroTime{Time: now}
		err = m.o.Client.Create(ctx, l)
	}
	if err != nil {
		return fmt.Errorf("writing Lease %s: %w", m.o.Replica, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.active() {
		// Whatever was missed meanwhile arrives before what was just written.
		m.waitFor = l.ResourceVersion
	}
	m.renewed = now
	m.catchUp()
	return nil
}

func member(o any) (*coordinationv1.Lease, bool) {
	if t, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = t.Obj
	}
	l, ok := o.(*coordinationv1.Lease)
	return l, ok && l.Labels[LabelMember] == labelValue
}

// seeLease notes a renewal.
func (m *Membership) seeLease(o any) {
	l, ok := member(o)
	if !ok || l.Namespace != m.o.Namespace {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen[l.Name].version == l.ResourceVersion {
		return // a resync of the cache, no renewal
	}
	m.seen[l.Name] = sight{version: l.ResourceVersion, at: m.o.Now()}
	m.rebuild()
	m.catchUp()
}

// catchUp ends the wait for this replica's own renewal once it was seen.
func (m *Membership) catchUp() {
	if m.waitFor != "" && m.seen[m.o.Replica].version == m.waitFor {
		m.waitFor = ""
		m.tell()
	}
}

// seeGone notes a replica that gave its Lease back.
func (m *Membership) seeGone(o any) {
	l, ok := member(o)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.seen, l.Name)
	m.rebuild()
}

// release gives the Lease back, so that the others need not wait for it.
func (m *Membership) release() {
	m.mu.Lock()
	m.renewed = time.Time{}
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), releaseTime)
	defer cancel()
	if err := client.IgnoreNotFound(m.o.Client.Delete(ctx, m.lease())); err != nil {
		m.o.Log.Error(err, "giving this replica's Lease back failed, it expires by itself")
	}
}
