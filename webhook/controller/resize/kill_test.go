package resize_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/webhook/controller/resize"
	"plimsoll.dev/webhook/membership"
)

// asReplica is the environment variable that makes this test binary a replica,
// with real membership; its value is a child's JSON.
const asReplica = "PLIMSOLL_TEST_REPLICA"

type child struct {
	Kubeconfig, Namespace, Name string
	Spec                        v1alpha1.ResourcePolicySpec
}

func replicaMain() {
	if err := runReplica(); err != nil {
		fmt.Fprintln(os.Stderr, "replica:", err)
		os.Exit(1)
	}
}

func runReplica() error {
	var me child
	if err := json.Unmarshal([]byte(os.Getenv(asReplica)), &me); err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", me.Kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	policies := &policy.Holder{}
	rp := v1alpha1.ResourcePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: me.Namespace, Name: "web"}, Spec: me.Spec}
	policies.Set(policy.NewIndex([]v1alpha1.ResourcePolicy{rp}, nil))
	var members *membership.Membership
	mgr, c, err := assemble(ctx, cfg, policies, func(mgr ctrl.Manager, o *resize.Options) error {
		direct, err := client.New(cfg, client.Options{Scheme: scheme()})
		if err != nil {
			return err
		}
		members, err = membership.New(membership.Options{Client: direct, Cache: mgr.GetCache(), Namespace: me.Namespace, Replica: me.Name})
		if err != nil {
			return err
		}
		o.Ring, o.Replica, o.Interval = members, me.Name, 10*time.Second
		return mgr.Add(members)
	})
	if err != nil {
		return err
	}
	if err := c.SetupWithManager(ctx, mgr, members.Subscribe()); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// spawn starts a replica as a process of its own.
func (f *fleet) spawn(name string) *exec.Cmd {
	f.t.Helper()
	me, err := json.Marshal(child{Kubeconfig: api.Kubeconfig, Namespace: f.ns, Name: name, Spec: f.spec})
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asReplica+"="+string(me))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// BenchmarkKill kills one of three replicas in the middle of resizing 300 pods:
// the others finish its share, no pod is changed twice, none is forgotten.
func BenchmarkKill(b *testing.B) {
	f := newFleet(b, 30)
	for range b.N {
		names := []string{"one", "two", "three"}
		var replicas []*exec.Cmd
		for _, name := range names {
			replicas = append(replicas, f.spawn(name))
		}
		before := f.changed()
		f.recommendAll("30m")
		f.eventually("a third is changed", 2*time.Minute, func() error {
			if n := f.since(before, 1); n < 100 {
				return fmt.Errorf("%d are", n)
			}
			return nil
		})
		if err := replicas[0].Process.Kill(); err != nil {
			b.Fatal(err)
		}
		expired := time.Now().Add(membership.Expire)
		left := len(before) - f.since(before, 1)
		f.eventually("all are changed", 3*time.Minute, func() error {
			if n := f.since(before, 1) + f.since(before, 2); n < len(before) {
				return fmt.Errorf("%d of %d are", n, len(before))
			}
			return nil
		})
		fmt.Printf("RESULT resize_kill_left %d pods\n", left)
		fmt.Printf("RESULT resize_kill_finished_after_expiry %.1f s\n", time.Since(expired).Seconds())
		fmt.Printf("RESULT resize_kill_twice %d pods\n", f.since(before, 2))
	}
}

// since counts the pods that were changed n times.
func (f *fleet) since(before map[string]int64, n int64) int {
	count := 0
	for name, changes := range f.changed() {
		if changes-before[name] == n {
			count++
		}
	}
	return count
}
