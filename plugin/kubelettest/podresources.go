// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The pod-resources API: which pod, by namespace and name, holds which devices. It has no pod UIDs.

package kubelettest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// podResourcesServer answers List, which is all that the agent asks for; other calls get the API's own Unimplemented.
type podResourcesServer struct {
	podresources.UnimplementedPodResourcesListerServer
	kubelet *Kubelet
}

func (k *Kubelet) startPodResourcesLocked() error {
	path := k.PodResourcesPath()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("make pod-resources directory: %w", err)
	}
	if err := removeIfThere(path); err != nil {
		return err
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, &podResourcesServer{kubelet: k})
	if err := k.serveLocked(server, path); err != nil {
		return errors.Join(errors.New("serve pod-resources"), err)
	}
	k.podServer = server
	return nil
}

// List returns every pod that holds devices.
func (s *podResourcesServer) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	response := &podresources.ListPodResourcesResponse{}
	var uid string
	var pod *podresources.PodResources
	for _, a := range s.kubelet.Allocations("") {
		if pod == nil || uid != a.Pod.UID {
			uid, pod = a.Pod.UID, &podresources.PodResources{Name: a.Pod.Name, Namespace: a.Pod.Namespace}
			response.PodResources = append(response.PodResources, pod)
		}
		i := slices.IndexFunc(pod.Containers, func(c *podresources.ContainerResources) bool { return c.GetName() == a.Container })
		if i < 0 {
			i = len(pod.Containers)
			pod.Containers = append(pod.Containers, &podresources.ContainerResources{Name: a.Container})
		}
		pod.Containers[i].Devices = append(pod.Containers[i].Devices, &podresources.ContainerDevices{ResourceName: a.Resource, DeviceIds: a.DeviceIDs})
	}
	return response, nil
}
