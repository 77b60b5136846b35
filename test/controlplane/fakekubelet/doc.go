// Package fakekubelet runs the real kubelet, several nodes in one process, over
// a container runtime kept in memory: pods are admitted, started, resized,
// probed, restarted and evicted as on a real node, but nothing is executed and
// no cgroup is written.
//
// What a container does is said by its command:
//
//	[exit, CODE, AFTER, REASON]
//
// ends it AFTER (a duration, default 0s) it started, with exit code CODE and
// optionally a REASON such as OOMKilled. With any other command it runs until
// it is stopped. From outside, through the control socket, a container can be
// made to exit, to use an amount of memory, or to refuse changes of its
// resources; see Change.
package fakekubelet
