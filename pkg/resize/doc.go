// Package resize decides the requests and limits of a pod: when it is created
// (PlanCreate) and in place while it runs (Plan). Both take recommendations
// and everything that bounds them, and return a Decision; neither acts.
//
// Whatever was recommended, a value that a Decision sets keeps
//
//	request ≤ limit ≤ policy maximum ≤ LimitRange ≤ node
//
// and the pod's quality-of-service class. Amounts are whole millicores of cpu
// and whole bytes of memory and ephemeral storage.
package resize
