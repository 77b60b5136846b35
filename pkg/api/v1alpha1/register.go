package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "plimsoll.dev", Version: "v1alpha1"}

// AddToScheme registers every kind of this package with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&ResourcePolicy{}, &ResourcePolicyList{},
		&ClusterResourcePolicy{}, &ClusterResourcePolicyList{},
		&WorkloadProfile{}, &WorkloadProfileList{},
		&ContainerProfile{}, &ContainerProfileList{},
		&PolicyPodStatus{}, &PolicyPodStatusList{},
		&AgentStatus{}, &AgentStatusList{},
		&PlimsollConfig{}, &PlimsollConfigList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
