// Package env starts the real parts that Plimsoll's tests run against: a
// Kubernetes API server with etcd and, on request, a controller manager, a
// scheduler and kubelets over an in-memory container runtime; and Redis as a
// single server, with replicas and Sentinels, or as a cluster.
//
// Everything listens on 127.0.0.1, ends with the test that started it, and
// ends with the test's process however that ends. What a machine lacks makes
// a test fail with the name of the missing thing; nothing is skipped.
//
// A package that shares one start among its tests does so in TestMain:
//
//	var api *env.API
//
//	func TestMain(m *testing.M) {
//		env.Main(m, func(t env.TB) {
//			api = env.StartAPI(t, env.Options{ControllerManager: true})
//		})
//	}
package env
