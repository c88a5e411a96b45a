// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Admission and container start: choosing devices, calling the plugin, keeping its answers.

package kubelettest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Pod names a pod.
type Pod struct{ UID, Namespace, Name string }

// Kind is the kind of a container; it decides who gets its devices afterwards.
type Kind int

const (
	// App is a main container: its devices are its own.
	App Kind = iota
	// Init is an ordinary init container: its devices are handed on within the pod.
	Init
	// Sidecar is an init container with restartPolicy Always: it keeps its devices.
	Sidecar
)

// Container names a container of a pod.
type Container struct {
	Name string
	Kind Kind
}

// Allocation is what a container was given of one resource. Response is the plugin's answer, cached for the life
// of the pod.
type Allocation struct {
	Pod       Pod
	Container string
	Resource  string
	DeviceIDs []string
	Response  *v1beta1.ContainerAllocateResponse
}

// podState is an admitted pod.
type podState struct {
	pod         Pod
	allocations []Allocation
	reusable    map[string][]string // by resource: devices that init containers hand on
}

// ErrNoDevices says that fewer healthy, free devices are left than were asked for.
var ErrNoDevices = errors.New("requested number of devices unavailable")

// Allocate gives a container count devices of a resource, the way the kubelet does at admission: devices of the
// pod's finished init containers first, then healthy free ones, with the plugin's preference where it offers one.
func (k *Kubelet) Allocate(ctx context.Context, pod Pod, container Container, resourceName string, count int) (Allocation, error) {
	k.admission.Lock()
	defer k.admission.Unlock()
	c, available, must, err := k.choose(pod.UID, resourceName, count)
	if err != nil {
		return Allocation{}, err
	}
	ids := must
	if len(ids) < count && c.options.GetGetPreferredAllocationAvailable() {
		preferred, err := k.prefer(ctx, c, resourceName, available, must, count)
		if err != nil {
			return Allocation{}, err
		}
		ids = append(slices.Clone(must), intersect(preferred, available, must)...)
	}
	for _, id := range available { // whatever is still missing
		if len(ids) < count && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return k.AllocateIDs(ctx, pod, container, resourceName, ids[:count])
}

// choose returns the plugin, the free healthy devices and those that must be used again.
func (k *Kubelet) choose(podUID, resourceName string, count int) (c *client, available, must []string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, ok := k.resources[resourceName]
	if !ok || r.current() == nil {
		return nil, nil, nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", resourceName)
	}
	inUse := k.inUseLocked(resourceName)
	if p, ok := k.pods[podUID]; ok {
		must = slices.Clone(p.reusable[resourceName])
	}
	must = must[:min(len(must), count)]
	for _, id := range r.order {
		if r.healthy(id) && !inUse[id] {
			available = append(available, id)
		}
	}
	if len(must)+len(available) < count {
		return nil, nil, nil, fmt.Errorf("%w: %s: requested %d, available %d", ErrNoDevices, resourceName, count, len(must)+len(available))
	}
	return r.current(), available, must, nil
}

// inUseLocked is the set of devices of a resource that any pod holds.
func (k *Kubelet) inUseLocked(resourceName string) map[string]bool {
	inUse := map[string]bool{}
	for _, p := range k.pods {
		for _, a := range p.allocations {
			if a.Resource == resourceName {
				for _, id := range a.DeviceIDs {
					inUse[id] = true
				}
			}
		}
	}
	return inUse
}

func (k *Kubelet) prefer(ctx context.Context, c *client, resourceName string, available, must []string, count int) ([]string, error) {
	request := &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{{
		AvailableDeviceIDs: slices.Concat(available, must), MustIncludeDeviceIDs: must, AllocationSize: int32(count),
	}}}
	response, err := c.plugin.GetPreferredAllocation(ctx, request)
	k.observeCall("GetPreferredAllocation", resourceName, c, request, response, err)
	if err != nil {
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
	}
	if len(response.GetContainerResponses()) == 0 {
		return nil, nil
	}
	return response.GetContainerResponses()[0].GetDeviceIDs(), nil
}

// AllocateIDs gives a container exactly these devices, without asking who else has them.
func (k *Kubelet) AllocateIDs(ctx context.Context, pod Pod, container Container, resourceName string, ids []string) (Allocation, error) {
	c, err := k.plugin(resourceName)
	if err != nil {
		return Allocation{}, err
	}
	request := &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: ids}}}
	response, err := c.plugin.Allocate(ctx, request)
	k.observeCall("Allocate", resourceName, c, request, response, err)
	if err != nil {
		return Allocation{}, fmt.Errorf("Allocate failed due to %w, which is unexpected", err)
	}
	if n := len(response.GetContainerResponses()); n != 1 {
		return Allocation{}, fmt.Errorf("%d container responses in allocate response, expected 1", n)
	}
	a := Allocation{Pod: pod, Container: container.Name, Resource: resourceName, DeviceIDs: slices.Clone(ids), Response: response.GetContainerResponses()[0]}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.recordLocked(a, container.Kind)
	if err := k.writeCheckpointLocked(); err != nil {
		return a, err
	}
	if err := os.MkdirAll(k.podDir(pod.UID), 0o750); err != nil {
		return a, fmt.Errorf("make pod directory: %w", err)
	}
	return a, nil
}

// recordLocked keeps an answer and updates what the pod may hand on.
func (k *Kubelet) recordLocked(a Allocation, kind Kind) {
	p, ok := k.pods[a.Pod.UID]
	if !ok {
		p = &podState{pod: a.Pod, reusable: map[string][]string{}}
		k.pods[a.Pod.UID] = p
	}
	p.allocations = append(p.allocations, a)
	if kind == Init {
		for _, id := range a.DeviceIDs {
			if !slices.Contains(p.reusable[a.Resource], id) {
				p.reusable[a.Resource] = append(p.reusable[a.Resource], id)
			}
		}
		return
	}
	p.reusable[a.Resource] = slices.DeleteFunc(p.reusable[a.Resource], func(id string) bool { return slices.Contains(a.DeviceIDs, id) })
}

// StartContainer does what happens before each start of a container, also a restart: PreStartContainer where the
// plugin asked for it, and the cached answers, by resource. There is no new Allocate, whatever the devices' health.
func (k *Kubelet) StartContainer(ctx context.Context, podUID, container string) (map[string]*v1beta1.ContainerAllocateResponse, error) {
	responses := map[string]*v1beta1.ContainerAllocateResponse{}
	for _, a := range k.Allocations(podUID) {
		if a.Container != container {
			continue
		}
		if err := k.PreStart(ctx, a.Resource, a.DeviceIDs); err != nil {
			return nil, err
		}
		responses[a.Resource] = a.Response
	}
	return responses, nil
}

// preStartTimeout is the kubelet's deadline for PreStartContainer.
const preStartTimeout = v1beta1.KubeletPreStartContainerRPCTimeoutInSecs * time.Second

// PreStart calls PreStartContainer if the plugin asked for it. A resource whose plugin is not there right now is
// passed over, as the kubelet does between its restart and the next registration.
func (k *Kubelet) PreStart(ctx context.Context, resourceName string, ids []string) error {
	c, err := k.plugin(resourceName)
	if err != nil || !c.options.GetPreStartRequired() {
		return nil //nolint:nilerr // no plugin, no call: the container starts
	}
	ctx, cancel := context.WithTimeout(ctx, preStartTimeout)
	defer cancel()
	request := &v1beta1.PreStartContainerRequest{DevicesIds: ids}
	response, err := c.plugin.PreStartContainer(ctx, request)
	k.observeCall("PreStartContainer", resourceName, c, request, response, err)
	if err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}

// RemovePod forgets a pod, frees its devices and removes its directory. The plugin is not told: there is no such call.
// The checkpoint names the pod until it is written for another reason, as the real one's does.
func (k *Kubelet) RemovePod(uid string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pods, uid)
	return os.RemoveAll(k.podDir(uid))
}

// Allocations returns what a pod holds, in the order of allocation; of all pods when uid is empty.
func (k *Kubelet) Allocations(uid string) []Allocation {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []Allocation
	for _, id := range slices.Sorted(maps.Keys(k.pods)) {
		if uid == "" || id == uid {
			all = append(all, k.pods[id].allocations...)
		}
	}
	return all
}

func (k *Kubelet) plugin(resourceName string) (*client, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r, ok := k.resources[resourceName]; ok && r.current() != nil {
		return r.current(), nil
	}
	return nil, fmt.Errorf("endpoint for resource %s is not registered", resourceName)
}

func (k *Kubelet) observeCall(method, resourceName string, c *client, request, response proto.Message, err error) {
	if err != nil {
		response = nil
	}
	k.observe(Message{Method: method, Resource: resourceName, Endpoint: c.endpoint, Request: request, Response: response, Err: err})
}

// intersect keeps of preferred what is available and not yet in must.
func intersect(preferred, available, must []string) []string {
	var out []string
	for _, id := range preferred {
		if slices.Contains(available, id) && !slices.Contains(must, id) && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}
