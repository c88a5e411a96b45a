// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package demo

import (
	"context"
	"fmt"

	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vgpud/vgpud/plugin/kubelettest"
)

// The pods. Metrics carry their names once the agent has found them in the kubelet's record.
const (
	podName       = "md-benchmem-01"
	secondPodName = "train-02"
	podNamespace  = "default"
	containerName = "gmx"
)

var (
	firstPod  = kubelettest.Pod{UID: "5a1d0f6c-7f0e-4f0e-9d3c-000000000001", Namespace: podNamespace, Name: podName}
	secondPod = kubelettest.Pod{UID: "5a1d0f6c-7f0e-4f0e-9d3c-000000000002", Namespace: podNamespace, Name: secondPodName}
)

// kubelet is the in-process kubelet with its messages kept for showing.
type kubelet struct {
	dir       string
	kubelet   *kubelettest.Kubelet
	registers chan *v1beta1.RegisterRequest
}

func startKubelet(dir string) (*kubelet, error) {
	k := &kubelet{dir: dir, registers: make(chan *v1beta1.RegisterRequest, 1)}
	var err error
	k.kubelet, err = kubelettest.Start(dir, kubelettest.Options{PodResources: true, Observe: k.observe})
	if err != nil {
		return nil, fmt.Errorf("start kubelet: %w", err)
	}
	return k, nil
}

// observe keeps the first accepted registration.
func (k *kubelet) observe(m kubelettest.Message) {
	request, ok := m.Request.(*v1beta1.RegisterRequest)
	if !ok || m.Err != nil {
		return
	}
	select {
	case k.registers <- request:
	default:
	}
}

func (k *kubelet) stop() error {
	if err := k.kubelet.Close(); err != nil {
		return fmt.Errorf("stop kubelet: %w", err)
	}
	return nil
}

// registration waits for the plugin to register.
func (k *kubelet) registration(ctx context.Context) (*v1beta1.RegisterRequest, error) {
	select {
	case request := <-k.registers:
		return request, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the registration: %w", context.Cause(ctx))
	}
}

// waitForList returns the first list from now on that is as wanted.
func (k *kubelet) waitForList(ctx context.Context, wanted func([]*v1beta1.Device) bool) ([]*v1beta1.Device, error) {
	for {
		select {
		case list := <-k.kubelet.Lists():
			if devices := list.Message.GetDevices(); wanted(devices) {
				return devices, nil
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// allocate admits a pod with these slices, and does what precedes the start of its container.
func (k *kubelet) allocate(ctx context.Context, pod kubelettest.Pod, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	container := kubelettest.Container{Name: containerName}
	allocation, err := k.kubelet.AllocateIDs(ctx, pod, container, resourceName, ids)
	if err != nil {
		return nil, fmt.Errorf("admit the pod: %w", err)
	}
	if _, err := k.kubelet.StartContainer(ctx, pod.UID, container.Name); err != nil {
		return nil, fmt.Errorf("start the container: %w", err)
	}
	return allocation.Response, nil
}
