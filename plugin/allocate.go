// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The kubelet's calls about containers: options, preference, Allocate, PreStartContainer. All answer from memory
// and local files; none asks the network or a GPU.

package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vgpud/vgpud/plugin/ledger"
)

// GetDevicePluginOptions asks for PreStartContainer and GetPreferredAllocation.
func (s *Server) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}, nil
}

// GetPreferredAllocation spreads a request over GPUs; see Prefer.
func (s *Server) GetPreferredAllocation(_ context.Context, request *v1beta1.PreferredAllocationRequest) (*v1beta1.PreferredAllocationResponse, error) {
	response := &v1beta1.PreferredAllocationResponse{}
	for _, c := range request.GetContainerRequests() {
		ids := Prefer(c.GetAvailableDeviceIDs(), c.GetMustIncludeDeviceIDs(), int(c.GetAllocationSize()))
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return response, nil
}

// Allocate grants the device IDs of each container: held in the books, pages made, record on disk, then answered.
// When anything fails, everything is undone and the call is an RPC error: the kubelet then refuses the pod, which
// is better than a container without limits.
func (s *Server) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	start := time.Now()
	response, err := s.allocate(request, start)
	s.count(func(st *Status) { st.AllocateDurations.add(time.Since(start)) })
	if err != nil {
		s.count(func(st *Status) { st.AllocationFailures++ })
		s.log.Error("refused an allocation", "devices", requestedIDs(request), "error", err)
		return nil, status.Error(codeOf(err), err.Error())
	}
	s.count(func(st *Status) { st.Allocations++ })
	s.log.Info("allocated", "devices", requestedIDs(request), "allocations", variables(response, AllocationVariable),
		"compute", variables(response, ComputeVariable), "took", time.Since(start))
	return response, nil
}

func (s *Server) allocate(request *v1beta1.AllocateRequest, now time.Time) (*v1beta1.AllocateResponse, error) {
	if len(request.GetContainerRequests()) == 0 {
		return nil, fmt.Errorf("%w: no container in the request", ledger.ErrUnknownDevice)
	}
	if err := s.checkNode(); err != nil {
		return nil, err
	}
	response := &v1beta1.AllocateResponse{}
	var granted []ledger.Record
	for _, c := range request.GetContainerRequests() {
		rec, err := s.grant(c.GetDevicesIds(), now)
		if err != nil {
			for _, earlier := range granted {
				err = errors.Join(err, s.undo(earlier))
			}
			s.inv.Refresh()
			return nil, err
		}
		granted = append(granted, rec)
		response.ContainerResponses = append(response.ContainerResponses, Response(rec, s.cfg))
	}
	s.inv.Refresh() // larger wishes elsewhere may now withdraw free slices
	return response, nil
}

// grant makes one allocation: hold, pages, check, commit. On an error nothing of it is left.
func (s *Server) grant(ids []string, now time.Time) (ledger.Record, error) {
	for _, id := range ids {
		if reason := s.inv.hardFault(id); reason != "" {
			return ledger.Record{}, &hardFaultError{id: id, reason: reason}
		}
		if s.inv.unresolved(id) { // the runtime would refuse to start the container
			return ledger.Record{}, &hardFaultError{id: id, reason: ReasonCDI}
		}
	}
	rec, err := s.books.Hold(s.cfg.ResourceName, ids, s.cfg.library(), s.cfg.PagesDir, now)
	if err != nil {
		return ledger.Record{}, err
	}
	err = s.pages.Create(rec)
	if err == nil {
		err = checkPages(rec)
	}
	if err == nil {
		err = s.books.Commit(rec.Key)
	}
	if err != nil {
		return ledger.Record{}, errors.Join(err, s.undo(rec))
	}
	return rec, nil
}

// undo takes an allocation back that no container will ever use.
func (s *Server) undo(rec ledger.Record) error {
	return errors.Join(s.pages.Remove(rec), s.books.Release(rec.Key))
}

// PreStartContainer checks every file that the container is about to get, and raises the epoch of its pages, so
// that what its predecessor still had charged counts as dead. An error fails this start, and the kubelet tries again.
//
// The request names device IDs only, and all allocations of exactly these IDs are treated. The older ones belong to
// pods that are gone, or to an init container of the same pod, whose library files are the newest one's and which
// never runs beside it. So a fault of an older one is logged and refuses nobody's start: what it can still do is leave
// an init container without pages, which libvgpu answers with limit 0.
func (s *Server) PreStartContainer(_ context.Context, request *v1beta1.PreStartContainerRequest) (*v1beta1.PreStartContainerResponse, error) {
	if err := s.preStart(request.GetDevicesIds()); err != nil {
		s.count(func(st *Status) { st.StartRefusals++ })
		s.log.Error("refused a container start", "devices", request.GetDevicesIds(), "error", err)
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &v1beta1.PreStartContainerResponse{}, nil
}

func (s *Server) preStart(ids []string) error {
	records := s.books.ByDeviceIDs(ids)
	if len(records) == 0 {
		return fmt.Errorf("no allocation on record holds devices %q: the pod has to be created anew", ids)
	}
	newest, older := records[len(records)-1], records[:len(records)-1]
	if err := s.ready(newest); err != nil {
		return err
	}
	for _, rec := range older {
		if err := s.ready(rec); err != nil {
			s.log.Warn("an older allocation of the same devices is not as it should be", "allocation", rec.Key, "error", err)
		}
	}
	return nil
}

// ready makes an allocation ready for a start of its container.
func (s *Server) ready(rec ledger.Record) error {
	if err := s.pages.Restore(rec); err != nil {
		return fmt.Errorf("restore pages of allocation %s: %w", rec.Key, err)
	}
	if err := checkAllocation(rec, s.cfg); err != nil {
		return err
	}
	if err := s.pages.RaiseEpoch(rec); err != nil {
		return fmt.Errorf("raise epoch of allocation %s: %w", rec.Key, err)
	}
	return nil
}

// hardFaultError refuses a slice of a GPU that cannot work.
type hardFaultError struct{ id, reason string }

func (e *hardFaultError) Error() string {
	return fmt.Sprintf("device %s is on a GPU with a fault: %s", e.id, e.reason)
}

// codeOf chooses the gRPC code; the kubelet shows the message and ignores the code, tests and people do not.
func codeOf(err error) codes.Code {
	var fault *hardFaultError
	switch {
	case errors.As(err, &fault):
		return codes.Unavailable
	case errors.Is(err, ledger.ErrUnknownDevice):
		return codes.InvalidArgument
	case errors.Is(err, ledger.ErrNoMemory):
		return codes.ResourceExhausted
	default:
		return codes.Internal
	}
}

// variables lists the values of one variable of the environment, by container.
func variables(response *v1beta1.AllocateResponse, name string) []string {
	var values []string
	for _, container := range response.GetContainerResponses() {
		values = append(values, container.GetEnvs()[name])
	}
	return values
}

func requestedIDs(request *v1beta1.AllocateRequest) []string {
	var ids []string
	for _, c := range request.GetContainerRequests() {
		ids = append(ids, c.GetDevicesIds()...)
	}
	return ids
}
