package resize

// Reason says why a pod or a field is changed or stays as it is. The same
// constants are condition reasons, event reasons and metric labels.
type Reason string

// Outcomes for a whole pod.
const (
	// ReasonChange: the decision sets values.
	ReasonChange Reason = "Change"
	// ReasonNoPolicy: no policy governs the pod, or it lists no resources.
	ReasonNoPolicy Reason = "NoPolicy"
	// ReasonNotSufficient: the profile has too little history.
	ReasonNotSufficient Reason = "ProfileNotSufficient"
	// ReasonStale: the profile's measurements could not be read lately.
	ReasonStale Reason = "ProfileStale"
	// ReasonNoRecommendation: nothing is recommended for the pod's containers.
	ReasonNoRecommendation Reason = "NoRecommendation"
	// ReasonWithinThreshold: every value is close enough to its recommendation.
	ReasonWithinThreshold Reason = "WithinThreshold"
	// ReasonNoChange: what is left after every bound is what the pod has.
	ReasonNoChange Reason = "NoChange"
	// ReasonPodResources: the pod has pod-level resources.
	ReasonPodResources Reason = "PodLevelResources"
	// ReasonStaticPod: the kubelet made the pod from a file.
	ReasonStaticPod Reason = "StaticPod"
	// ReasonWindows: pods on Windows are not resized.
	ReasonWindows Reason = "WindowsPod"
	// ReasonNotRunning: the pod is not running, or it is being deleted.
	ReasonNotRunning Reason = "NotRunning"
	// ReasonNotStarted: a container has not started yet.
	ReasonNotStarted Reason = "NotStarted"
	// ReasonBestEffort: a BestEffort pod can be given no resources.
	ReasonBestEffort Reason = "BestEffort"
	// ReasonInFlight: an earlier resize is not finished.
	ReasonInFlight Reason = "InFlight"
	// ReasonWatching: the last resize is still being watched.
	ReasonWatching Reason = "Watching"
	// ReasonCoolDown: the policy's interval since the last resize has not passed.
	ReasonCoolDown Reason = "CoolDown"
	// ReasonHeld: the pod is held back after a resize that did not go well.
	ReasonHeld Reason = "Held"
	// ReasonInfeasible: the kubelet refused a resize of this generation.
	ReasonInfeasible Reason = "Infeasible"
	// ReasonOutsideSchedule: the policy's schedule allows no change now.
	ReasonOutsideSchedule Reason = "OutsideSchedule"
)

// What decides a value, or keeps a field as it is.
const (
	// ReasonRecommended: the value is the recommendation.
	ReasonRecommended Reason = "Recommended"
	// ReasonStep: the value is a step on the way to the recommendation.
	ReasonStep Reason = "Step"
	// ReasonPolicyBound: the policy's minimum or maximum decided.
	ReasonPolicyBound Reason = "PolicyBound"
	// ReasonLimitRange: a LimitRange decided.
	ReasonLimitRange Reason = "LimitRange"
	// ReasonQuota: a ResourceQuota has too little left.
	ReasonQuota Reason = "ResourceQuota"
	// ReasonNode: the node's allocatable resources decided.
	ReasonNode Reason = "NodeAllocatable"
	// ReasonNodeFree: the node has too little left.
	ReasonNodeFree Reason = "NodeFull"
	// ReasonLimit: a request was lowered to the limit.
	ReasonLimit Reason = "LoweredToLimit"
	// ReasonRequest: a limit was raised to the request.
	ReasonRequest Reason = "RaisedToRequest"
	// ReasonQoS: the pod's quality-of-service class decided.
	ReasonQoS Reason = "QoSClass"
	// ReasonAutoscaled: a HorizontalPodAutoscaler targets the request.
	ReasonAutoscaled Reason = "HorizontalPodAutoscaler"
	// ReasonUnset: a value that is unset cannot be taken back once it is set.
	ReasonUnset Reason = "Unset"
	// ReasonRestart: the container's resizePolicy asks for a restart.
	ReasonRestart Reason = "RestartRequired"
	// ReasonSwap: the container may use swap.
	ReasonSwap Reason = "Swap"
	// ReasonStaticCPU: the container's cores are pinned.
	ReasonStaticCPU Reason = "StaticCPUManager"
	// ReasonNoLiveUsage: no fresh usage is known, so memory is not lowered.
	ReasonNoLiveUsage Reason = "NoLiveUsage"
	// ReasonLiveUsage: live usage and its margin decided.
	ReasonLiveUsage Reason = "LiveUsage"
)

// Why a change that was decided is not sent, not kept or taken back.
const (
	// ReasonPeer: a live replica resized the pod a short while ago.
	ReasonPeer Reason = "OwnedByPeer"
	// ReasonFieldOwnedByOther: a person or another autoscaler owns a field.
	ReasonFieldOwnedByOther Reason = "FieldOwnedByOther"
	// ReasonConflict: the pod changed meanwhile.
	ReasonConflict Reason = "Conflict"
	// ReasonRefused: the API server refused the change.
	ReasonRefused Reason = "Refused"
	// ReasonUnsupported: the API server has no pods/resize, so that mode resize
	// acts as apply.
	ReasonUnsupported Reason = "ResizeUnsupported"
	// ReasonGone: the pod is gone.
	ReasonGone Reason = "Gone"
	// ReasonDryRun: the policy only wants to know.
	ReasonDryRun Reason = "DryRun"
	// ReasonSuspended: PlimsollConfig suspends everything.
	ReasonSuspended Reason = "Suspended"
	// ReasonBudget: as many pods as the policy allows are being resized.
	ReasonBudget Reason = "MaxConcurrent"
	// ReasonCanary: the first pods of a change are still watched.
	ReasonCanary Reason = "CanaryWatched"
	// ReasonCanaryFailed: one of the first pods of a change did badly.
	ReasonCanaryFailed Reason = "CanaryFailed"
	// ReasonResized: the kubelet actuated the change.
	ReasonResized Reason = "Resized"
	// ReasonDeferred: the node had no room for longer than the policy waits.
	ReasonDeferred Reason = "Deferred"
	// ReasonTimeout: the kubelet took longer than the policy waits.
	ReasonTimeout Reason = "TimedOut"
	// ReasonOOMKilled: a container was OOM-killed after the change.
	ReasonOOMKilled Reason = "OOMKilled"
	// ReasonRestarted: a container restarted after the change.
	ReasonRestarted Reason = "Restarted"
	// ReasonUnready: the pod lost its readiness after the change.
	ReasonUnready Reason = "Unready"
	// ReasonThrottled: a container was throttled hard after its cpu limit was lowered.
	ReasonThrottled Reason = "Throttled"
)
