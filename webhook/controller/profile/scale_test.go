package profile_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"k8s.io/client-go/tools/clientcmd"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	identity "plimsoll.dev/pkg/profile"
	"plimsoll.dev/webhook/controller/profile"
)

const (
	scalePods     = 10_000
	scaleProfiles = 500
)

// A policy of higher priority takes over half of 10,000 pods. What is counted is
// what the API server counts; all of it runs on the machine of the test.
func BenchmarkTakeover10000(b *testing.B) {
	for range b.N {
		takeover(b)
	}
}

func takeover(b *testing.B) {
	w := start(b)
	w.stop()
	w.wait, w.tick = 10*time.Minute, 500*time.Millisecond
	blue, green := w.newNamespace(nil), w.newNamespace(nil)
	fleet := w.cluster("fleet", 0, v1alpha1.Selector{})
	w.createPods(blue, green)

	// Admission stamped the pods: the controllers have the profiles to make.
	before := api.Requests()
	r := startProcess(b)
	w.counted(map[string]int32{"ClusterResourcePolicy/fleet": scalePods})
	w.quiet()
	made := api.Requests().Since(before)
	if stamps, profiles := made.Writes("pods"), made.Writes("workloadprofiles"); stamps != 0 || profiles != scaleProfiles {
		b.Errorf("%d stamps and %d profiles made, want 0 and %d", stamps, profiles, scaleProfiles)
	}

	before, began, cpu := api.Requests(), time.Now(), r.cpu()
	w.cluster("takes-over", 10, only(v1alpha1.Pattern(green)))
	w.eventually("the last stamp", func() error {
		if n := api.Requests().Since(before).Writes("pods"); n < scalePods/2 {
			return fmt.Errorf("%d stamps", n)
		}
		return nil
	})
	took := time.Since(began)
	cpu = r.cpu() - cpu
	w.counted(map[string]int32{"ClusterResourcePolicy/fleet": scalePods / 2, "ClusterResourcePolicy/takes-over": scalePods / 2})
	w.quiet()
	moved := api.Requests().Since(before)
	if n := moved.Writes("pods"); n != scalePods/2 {
		b.Errorf("%d stamps, want %d", n, scalePods/2)
	}
	if took > time.Minute {
		b.Errorf("moving %d pods took %s", scalePods/2, took)
	}

	before = api.Requests()
	w.patch(fleet, `{"spec":{"resources":[{"resource":"cpu","field":"request","headroom":"3"}]}}`)
	w.quiet()
	edited := api.Requests().Since(before).Writes("") - 1 // the edit itself
	before = api.Requests()
	for range 6 { // an hour of resyncs
		r.rebalance()
	}
	w.quiet()
	idle := api.Requests().Since(before).Writes("")
	if edited != 0 || idle != 0 {
		b.Errorf("a headroom edit took %d writes, resyncs took %d", edited, idle)
	}
	peak, settled := r.memory()
	fmt.Printf("RESULT profile_takeover_s %.1f s\n", took.Seconds())
	fmt.Printf("RESULT profile_takeover_cpu_s %.1f s\n", cpu.Seconds())
	fmt.Printf("RESULT profile_takeover_pod_writes %d writes\n", moved.Writes("pods"))
	fmt.Printf("RESULT profile_takeover_other_writes %d writes\n", moved.Writes("")-moved.Writes("pods")-1)
	fmt.Printf("RESULT profile_headroom_writes %d writes\n", edited)
	fmt.Printf("RESULT profile_idle_writes %d writes\n", idle)
	fmt.Printf("RESULT profile_memory_mib %d MiB\n", settled)
	fmt.Printf("RESULT profile_memory_peak_mib %d MiB\n", peak)
	if peak > 300 {
		b.Errorf("the controllers needed %d MiB at their peak", peak)
	}
}

// counted waits until profiles add up to so many live pods per policy.
func (w *world) counted(want map[string]int32) {
	w.t.Helper()
	w.eventually("the counts of all profiles", func() error {
		var profiles v1alpha1.WorkloadProfileList
		w.must(w.c.List(w.t.Context(), &profiles))
		got := map[string]int32{}
		for _, p := range profiles.Items {
			got[identity.FormatRef(identity.KeyOfIdentity(p.Spec.Identity).Ref())] += p.Status.ActivePods
		}
		for ref, n := range want {
			if got[ref] != n {
				return fmt.Errorf("%d pods of %s", got[ref], ref)
			}
		}
		return nil
	})
}

// createPods makes half of the pods in each namespace, stamped as admission would.
func (w *world) createPods(namespaces ...string) {
	w.t.Helper()
	index := policy.NewIndex(nil, []v1alpha1.ClusterResourcePolicy{{ObjectMeta: metav1.ObjectMeta{Name: "fleet"}}})
	var next atomic.Int64
	var wg sync.WaitGroup
	failed := make(chan error, 16)
	for range cap(failed) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < scalePods; i = int(next.Add(1)) - 1 {
				p := ordinaryPod(namespaces[i%len(namespaces)], i)
				governing, _ := index.Resolve(policy.NewInput(p, p.Namespace, "Pod"))
				key := identity.KeyOf(p.Labels, v1alpha1.DefaultIdentityLabels(), governing.Ref)
				p.Annotations[v1alpha1.AnnotationPolicyRef] = identity.FormatRef(governing.Ref)
				p.Annotations[v1alpha1.AnnotationProfileRef] = key.Name()
				if err := w.c.Create(w.t.Context(), p); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		w.t.Fatal(err)
	default:
	}
}

// ordinaryPod has about what pods out there have: two containers with probes and
// variables, a few volumes.
func ordinaryPod(namespace string, i int) *corev1.Pod {
	labels := workload(fmt.Sprintf("shop-%03d", i%scaleProfiles), v1alpha1.ModeResize)
	labels["pod-template-hash"], labels["app.kubernetes.io/version"] = "6f5d8c7b9", "1.2.3"
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}}}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: fmt.Sprintf("shop-%d", i), Labels: labels,
		Annotations: map[string]string{"prometheus.io/scrape": "true", "checksum/config": strings.Repeat("0123456789abcdef", 4)},
	}}
	for _, name := range []string{"app", "proxy"} {
		c := corev1.Container{
			Name: name, Image: "registry.example.org/team/" + name + "@sha256:" + strings.Repeat("0123456789abcdef", 4),
			Ports: []corev1.ContainerPort{{Name: "http-" + name, ContainerPort: 8080}}, LivenessProbe: probe, ReadinessProbe: probe,
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse("256Mi")},
			},
		}
		for v := range 12 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", v), Value: "some value of ordinary length"})
			if v < 4 {
				c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: fmt.Sprintf("v%d", v), MountPath: fmt.Sprintf("/mnt/%d", v)})
			}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	for v := range 4 {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v%d", v), VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	return p
}

// asReplica, set to the path of a kubeconfig, makes the test's program a replica.
const asReplica = "PLIMSOLL_TEST_REPLICA"

// runReplica runs the controllers until its input ends; a line of input has them
// look at everything again.
func runReplica(kubeconfig string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "replica:", err)
			os.Exit(1)
		}
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	fail(err)
	cfg.QPS = -1
	mgr, err := newManager(cfg)
	fail(err)
	again := make(chan struct{})
	fail(profile.SetupWithManager(mgr, profile.Deps{
		Resolver: profile.NewResolver(mgr, &policy.Holder{}, "plimsoll"), Purger: &purger{}, Recorder: &events{}, Rebalanced: again,
	}))
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			again <- struct{}{}
		}
	}()
	fail(mgr.Start(ctx))
}

// process is a replica of its own, so that its memory is the controllers' alone.
type process struct {
	t     testing.TB
	cmd   *exec.Cmd
	input io.WriteCloser
}

func startProcess(t testing.TB) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(self)}
	p.cmd.Env = append(os.Environ(), asReplica+"="+api.Kubeconfig)
	p.cmd.Stdout, p.cmd.Stderr = os.Stdout, os.Stderr
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.input.Close() // ends it
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("the replica ended: %v", err)
		}
	})
	return p
}

func (p *process) rebalance() {
	p.t.Helper()
	if _, err := io.WriteString(p.input, "again\n"); err != nil {
		p.t.Fatal(err)
	}
}

// cpu returns the processor time the process has taken.
func (p *process) cpu() time.Duration {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	// The name in parentheses may hold spaces; utime and stime, in hundredths of
	// a second, are the 12th and 13th field after it.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var ticks int
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			p.t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// memory returns what the process needed at most and needs now, in MiB of resident memory.
func (p *process) memory() (peak, now int) {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.Atoi(fields[1])
		switch fields[0] {
		case "VmHWM:":
			peak = kib / 1024
		case "VmRSS:":
			now = kib / 1024
		}
	}
	return peak, now
}
