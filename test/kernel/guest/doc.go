// Package guest runs programs on other kernels than this machine's: in a QEMU
// guest whose first process is ours, with the cgroup v2 tree alone, as most
// machines have it and few build machines do. QEMU emulates the processor, so
// that it runs wherever QEMU does; everything takes some ten times longer.
package guest

// Command is a program to be run in the guest.
type Command struct {
	// Name is what reports call it.
	Name string
	// Dir is the working folder, a path in the guest.
	Dir string
	// Argv is the program, a path in the guest, and its arguments.
	Argv []string
	// Env is added to the environment.
	Env []string
}

const (
	// Commands is the guest's file that holds the commands as JSON.
	Commands = "/commands.json"
	// Out is the guest's folder that is brought back after the last command.
	Out = "/out"
	// Status is the file in what is brought back that says how it went: the
	// names of the commands that failed, one on a line.
	Status = "status"
)
