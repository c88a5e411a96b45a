// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The steps that the kubelet sees: registration, three lists, one allocation.

package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// slicesPerCard is small enough for whole lists to be read.
const slicesPerCard = 4

const resourceName = "nvidia.com/gpu"

// message is a protocol message as JSON data: field names as in the .proto file.
func message(m proto.Message) (json.RawMessage, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	return text, nil
}

func (s *stage) showCards(ctx context.Context) error {
	status, err := s.cards.insert(ctx)
	if err != nil {
		return err
	}
	s.firstCard = status[0].UUID
	step := Step{Name: "cards", Title: "A node with two GPUs", Data: map[string]any{"gpus": status},
		Prose: "They are simulated: a libcuda and a libnvidia-ml that answer as a driver would, with state that all " +
			"processes share. Everything else is what runs on a real node."}
	for i, card := range status {
		step.Lines = append(step.Lines, fmt.Sprintf("GPU %d  %s  %s  %s", i, card.UUID, card.Model, bytesText(card.Total)))
	}
	return s.show(step)
}

func (s *stage) showRegistration(ctx context.Context) error {
	if err := s.node.start(ctx, s.kubelet.dir); err != nil {
		return err
	}
	request, err := s.kubelet.registration(ctx)
	if err != nil {
		return err
	}
	if request.GetResourceName() != resourceName || request.GetVersion() != v1beta1.Version {
		return fmt.Errorf("registration of %s, version %s, is not what was configured", request.GetResourceName(), request.GetVersion())
	}
	data, err := message(request)
	if err != nil {
		return err
	}
	return s.show(Step{Name: "registration", Title: "The agent registers with the kubelet", Data: data,
		Prose: "One message on the kubelet's socket: which resource it serves, and under which socket it is to be called " +
			"back. The socket's name is new each time: some kubelets lose a plugin that comes back under an old one.",
		Lines: []string{
			"version           " + request.GetVersion(),
			"resource_name     " + request.GetResourceName(),
			"endpoint          " + request.GetEndpoint(),
			fmt.Sprintf("options           pre_start_required=%t get_preferred_allocation_available=%t",
				request.GetOptions().GetPreStartRequired(), request.GetOptions().GetGetPreferredAllocationAvailable()),
		}})
}

func (s *stage) showFirstList(ctx context.Context) error {
	list, err := s.kubelet.waitForList(ctx, func(devices []*v1beta1.Device) bool {
		return len(devices) == cardCount*slicesPerCard && unhealthy(devices) == 0
	})
	if err != nil {
		return fmt.Errorf("wait for the first list: %w", err)
	}
	for _, d := range list {
		s.slices = append(s.slices, d.GetID())
	}
	return s.showList("first-list", "First list: every slice is on offer", list,
		fmt.Sprintf("Each card is cut into %d slices. A device ID is the slice's identity: the card's UUID and a number, "+
			"the same after restarts. The scheduler now sees %s: %d on this node.", slicesPerCard, resourceName, len(list)))
}

func (s *stage) showFailure(ctx context.Context) error {
	uuid, err := s.node.fail(ctx)
	if err != nil {
		return err
	}
	list, err := s.kubelet.waitForList(ctx, func(devices []*v1beta1.Device) bool {
		return unhealthy(devices) == slicesPerCard && unhealthyOf(devices, uuid) == slicesPerCard
	})
	if err != nil {
		return fmt.Errorf("wait for the second list: %w", err)
	}
	return s.showList("second-list", "Second list: a GPU fails", list,
		"The driver reports one card as lost. Its slices are withdrawn, the other card's stay on offer: the list is sent "+
			"again, whole, with the health of each device.")
}

func (s *stage) showRecovery(ctx context.Context) error {
	if err := s.node.recover(ctx); err != nil {
		return err
	}
	list, err := s.kubelet.waitForList(ctx, func(devices []*v1beta1.Device) bool { return unhealthy(devices) == 0 })
	if err != nil {
		return fmt.Errorf("wait for the third list: %w", err)
	}
	return s.showList("third-list", "Third list: the GPU is back", list,
		"The card can be read again, several times in a row, so its slices return. No restart was needed.")
}

func (s *stage) showList(name, title string, list []*v1beta1.Device, prose string) error {
	devices := make([]json.RawMessage, 0, len(list))
	var lines []string
	for _, d := range list {
		data, err := message(d)
		if err != nil {
			return err
		}
		devices = append(devices, data)
		lines = append(lines, fmt.Sprintf("%s  %s", d.GetID(), d.GetHealth()))
	}
	return s.show(Step{Name: name, Title: title, Prose: prose, Lines: lines, Data: map[string]any{
		"healthy": len(list) - unhealthy(list), "unhealthy": unhealthy(list), "devices": devices}})
}

func unhealthy(devices []*v1beta1.Device) int { return unhealthyOf(devices, "") }

// unhealthyOf counts the unhealthy devices whose ID begins with prefix.
func unhealthyOf(devices []*v1beta1.Device, prefix string) int {
	count := 0
	for _, d := range devices {
		if d.GetHealth() == v1beta1.Unhealthy && strings.HasPrefix(d.GetID(), prefix) {
			count++
		}
	}
	return count
}

func (s *stage) showAllocate(ctx context.Context) error {
	id := s.slices[slices.IndexFunc(s.slices, func(id string) bool { return strings.HasPrefix(id, s.firstCard) })]
	answer, err := s.kubelet.allocate(ctx, firstPod, []string{id})
	if err != nil {
		return err
	}
	s.answer = answer
	data, err := message(answer)
	if err != nil {
		return err
	}
	lines := []string{"asked     " + id}
	for _, name := range slices.Sorted(maps.Keys(answer.GetEnvs())) {
		lines = append(lines, fmt.Sprintf("env       %s=%s", name, answer.GetEnvs()[name]))
	}
	for _, m := range answer.GetMounts() {
		mode := "rw"
		if m.GetReadOnly() {
			mode = "ro"
		}
		// Host paths lie in the demo's directory; what matters is the last part.
		host := strings.TrimPrefix(m.GetHostPath(), s.dir+string(filepath.Separator))
		lines = append(lines, fmt.Sprintf("mount %s  %s ← %s", mode, m.GetContainerPath(), host))
	}
	return s.show(Step{Name: "allocate", Title: "A container is given one slice", Lines: lines,
		Data: map[string]any{"device_ids": []string{id}, "response": data},
		Prose: "The answer to Allocate: the library, a preload file that makes the loader put it into every program, and " +
			"two pages. The container can read its limit but not write it; it writes what it uses. Before this answer left, " +
			"the grant was on disk."})
}
