// Package node starts a real Kubernetes of one node on this machine: etcd, the
// API server, the controller manager, the scheduler, the kubelet, containerd,
// runc and a CNI bridge, each the program a cluster runs.
//
// Everything lives in namespaces of its own (network, mount and pid) below one
// small init process, under cgroups and a state folder named after the
// cluster. Ending that init ends every process, mount and network interface
// with it; the kernel sees to it even if the caller is killed. What remains
// then, cgroups and files, the next Start removes.
//
// It needs root, the Debian packages that setup.sh names, and the binaries
// that Build makes. Hosts with cgroup v2, v1 and both are supported.
package node
