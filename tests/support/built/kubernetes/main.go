// All the programs of a Kubernetes cluster in one: which one it is, its name says, as busybox does it.
//
// Each is the command that the program of that name is made of, so that there is nothing here that could differ from it.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	var program *cobra.Command
	switch name := filepath.Base(os.Args[0]); name {
	case "kube-apiserver":
		program = apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		program = manager.NewControllerManagerCommand()
	case "kube-scheduler":
		program = scheduler.NewSchedulerCommand()
	case "kubelet":
		program = kubelet.NewKubeletCommand(context.Background())
	case "kubectl": // it says what went wrong, and chooses the exit status, by itself
		util.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
		return
	default:
		fmt.Fprintf(os.Stderr, "no program of a Kubernetes cluster is called %q\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(program))
}
