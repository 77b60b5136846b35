// Package discovery knows which containers of the node are measured and where their cgroups are, from the node's pods
// and from the cgroup tree. It never asks the kubelet.
package discovery

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// UnnamedFor is how long a cgroup is reported before the pod's status says which container it is.
	UnnamedFor = 2 * time.Minute
	// rescanEvery bounds how long an unexpected change in a settled pod's cgroup goes unnoticed.
	rescanEvery = 10 * time.Second
	// searchEvery spaces the searches of the whole tree.
	searchEvery = 5 * time.Second
)

// Container is one container and its cgroup.
type Container struct {
	ID   string
	Path string // of its cgroup, relative to each hierarchy
	Pod  *Pod
	// Name is empty until the pod's status says which container this is.
	Name string
	// StartedAt is the status's, or until there is one when the cgroup was first seen.
	StartedAt time.Time
	Resources corev1.ResourceRequirements
	// AbsentAt is a moment shortly before at which the cgroup did not exist, so that its counters stood at zero; the zero
	// time when it was there before anyone looked.
	AbsentAt time.Time
}

// Discovery holds the node's measured containers. It is safe for concurrent use.
type Discovery struct {
	tree Tree

	mu         sync.Mutex
	pods       map[types.UID]*podState
	roots      []string
	lastSearch time.Time
	changed    bool
	snapshot   []Container
}

// podState is a pod, where it is, and the containers found in it.
type podState struct {
	pod       *Pod
	deleted   bool
	deletedAt time.Time // of the first Scan after

	path       string
	links      uint64
	lastLook   time.Time // at whether the cgroup changed
	prevLook   time.Time // the one before
	lastScan   time.Time // of what is in it
	lastSearch time.Time
	dirty      bool
	containers map[string]*found // by id
}

// found is a container's cgroup as it was found, and the last that a status said of it: once named, a container keeps its
// name when a newer status no longer mentions it.
type found struct {
	path      string
	firstSeen time.Time
	absentAt  time.Time
	named     bool
	status    containerStatus
}

// New returns a Discovery over a cgroup hierarchy, knowing no pod yet.
func New(tree Tree) *Discovery {
	return &Discovery{tree: tree, pods: map[types.UID]*podState{}}
}

// SetPod takes the present state of a pod of this node. One that is not enrolled is forgotten, containers and all.
func (d *Discovery) SetPod(object *corev1.Pod) {
	d.mu.Lock()
	defer d.mu.Unlock()
	pod, enrolled := NewPod(object)
	if !enrolled {
		if _, known := d.pods[object.UID]; known {
			delete(d.pods, object.UID)
			d.changed = true
		}
		return
	}
	s := d.pods[pod.UID]
	if s == nil {
		s = &podState{containers: map[string]*found{}}
		d.pods[pod.UID] = s
	}
	s.pod, s.deleted, s.dirty = pod, false, true
	d.changed = true
}

// DeletePod notes that the pod is no longer listed. Its containers stay until their cgroups are gone: a list may be
// wrong for a moment, and a container may run on while its pod is already deleted.
func (d *Discovery) DeletePod(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.pods[uid]; s != nil {
		s.deleted, s.dirty = true, true
	}
}

// Gone tells that a container's cgroup was found to have vanished.
func (d *Discovery) Gone(uid types.UID, id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.pods[uid]; s != nil && s.containers[id] != nil {
		delete(s.containers, id)
		s.lastLook = s.prevLook // another may have come in its place before the last look
		s.dirty = true
		d.changed = true
	}
}

// Scan looks at the cgroup tree where something may have changed and returns all containers, sorted by path, and
// whether anything is different from the last Scan. The slice is not changed afterwards.
func (d *Discovery) Scan(now time.Time) ([]Container, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for uid, s := range d.pods {
		d.scanPod(s, now)
		s.prevLook, s.lastLook = s.lastLook, now
		switch {
		case !s.deleted:
			s.deletedAt = time.Time{}
		case s.deletedAt.IsZero():
			s.deletedAt = now
		case len(s.containers) == 0 && now.Sub(s.deletedAt) > UnnamedFor:
			delete(d.pods, uid)
		}
	}
	changed := d.changed || d.expired(now)
	if changed {
		d.snapshot = d.collect(now)
		d.changed = false
	}
	return d.snapshot, changed
}

// expired reports whether a container without a name has had its time since the last snapshot.
func (d *Discovery) expired(now time.Time) bool {
	for i := range d.snapshot {
		if c := &d.snapshot[i]; c.Name == "" && now.Sub(c.StartedAt) > UnnamedFor {
			return true
		}
	}
	return false
}

func (d *Discovery) scanPod(s *podState, now time.Time) {
	if s.path == "" && !d.findPod(s, now) {
		d.searchContainers(s, now)
		return
	}
	links := d.tree.children(s.path)
	quiet := s.pod.settled && !s.dirty && links != 0 && links == s.links
	if quiet && now.Sub(s.lastScan) < rescanEvery {
		return
	}
	s.links, s.lastScan, s.dirty = links, now, false
	present, err := d.tree.Containers(s.path)
	if err != nil {
		return
	}
	absentAt := s.lastLook
	for id := range s.containers {
		if present[id] == "" {
			// One went as another came: the number of links, all that the last look saw, may have been the same.
			absentAt = s.prevLook
		}
	}
	for id, p := range present {
		if s.containers[id] == nil {
			s.containers[id] = &found{path: p, firstSeen: now, absentAt: absentAt}
			d.changed = true
		}
	}
	d.drop(s, func(id string, f *found) bool { _, there := present[id]; return !there && !d.tree.Exists(f.path) })
	if len(present) == 0 && !d.tree.Exists(s.path) {
		s.path = ""
	}
}

// findPod finds the pod's cgroup, searching the tree for new kubepods cgroups now and then.
func (d *Discovery) findPod(s *podState, now time.Time) bool {
	p, ok := d.tree.Pod(d.roots, s.pod.UID, s.pod.QOS)
	if !ok && !s.deleted && now.Sub(d.lastSearch) >= searchEvery {
		// What a search cut short has found is still good.
		d.roots, _ = d.tree.Roots()
		d.lastSearch = now
		p, ok = d.tree.Pod(d.roots, s.pod.UID, s.pod.QOS)
	}
	s.path = p
	return ok
}

// searchContainers looks for containers by id alone, for a layout of pods that is not known.
func (d *Discovery) searchContainers(s *podState, now time.Time) {
	d.drop(s, func(_ string, f *found) bool { return !d.tree.Exists(f.path) })
	if s.deleted || now.Sub(s.lastSearch) < searchEvery {
		return
	}
	s.lastSearch = now
	for id, status := range s.pod.statuses {
		if status.ended || s.containers[id] != nil || !s.pod.containers[status.name].measured {
			continue
		}
		if p, ok := d.tree.Container(d.roots, id); ok {
			s.containers[id] = &found{path: p, firstSeen: now}
			d.changed = true
		}
	}
}

func (d *Discovery) drop(s *podState, is func(string, *found) bool) {
	for id, f := range s.containers {
		if is(id, f) {
			delete(s.containers, id)
			d.changed = true
		}
	}
}

// collect lists the containers to measure: the named ones that are measured and not ended, and for a while those which
// nobody has named yet.
func (d *Discovery) collect(now time.Time) []Container {
	var all []Container
	for _, s := range d.pods {
		for id, f := range s.containers {
			c := Container{ID: id, Path: f.path, Pod: s.pod, StartedAt: f.firstSeen, AbsentAt: f.absentAt}
			if status, ok := s.pod.statuses[id]; ok {
				f.named, f.status = true, status
			}
			spec := s.pod.containers[f.status.name]
			switch {
			case f.named && (f.status.ended || !spec.measured):
				continue
			case f.named:
				c.Name, c.Resources = f.status.name, spec.resources
				if !f.status.startedAt.IsZero() {
					c.StartedAt = f.status.startedAt
				}
			case now.Sub(f.firstSeen) > UnnamedFor:
				continue
			}
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b Container) int { return strings.Compare(a.Path, b.Path) })
	return all
}

// Lookup returns what is known of a container by its id, also after its cgroup is gone; false when no status has named it
// or it is not one that is measured. Path is empty.
func (d *Discovery) Lookup(uid types.UID, id string) (Container, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.pods[uid]
	if s == nil {
		return Container{}, false
	}
	status, named := s.pod.statuses[id]
	spec := s.pod.containers[status.name]
	if !named || !spec.measured {
		return Container{}, false
	}
	return Container{ID: id, Pod: s.pod, Name: status.name, StartedAt: status.startedAt, Resources: spec.resources}, true
}

// OOMKilled returns the containers whose end, by their pod's status, was an OOM kill, and when.
func (d *Discovery) OOMKilled() []Termination {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []Termination
	for _, s := range d.pods {
		for id, status := range s.pod.statuses {
			spec := s.pod.containers[status.name]
			if status.oomKilledAt.IsZero() || !spec.measured {
				continue
			}
			all = append(all, Termination{
				Container: Container{ID: id, Pod: s.pod, Name: status.name, StartedAt: status.startedAt, Resources: spec.resources},
				At:        status.oomKilledAt,
			})
		}
	}
	return all
}

// Termination is the end of a container.
type Termination struct {
	Container
	At time.Time
}

// Pods returns the enrolled pods, sorted by name.
func (d *Discovery) Pods() []*Pod {
	d.mu.Lock()
	defer d.mu.Unlock()
	pods := make([]*Pod, 0, len(d.pods))
	for s := range maps.Values(d.pods) {
		pods = append(pods, s.pod)
	}
	slices.SortFunc(pods, func(a, b *Pod) int { return strings.Compare(a.String(), b.String()) })
	return pods
}
