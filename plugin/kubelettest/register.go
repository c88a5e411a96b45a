// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Registrations and list streams: which plugin speaks for a resource, and what its devices are.

package kubelettest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// dialTimeout is how long the kubelet tries to reach a plugin inside Register.
const dialTimeout = 10 * time.Second

// resource is one extended resource: its plugins and its devices.
type resource struct {
	clients []*client // oldest first; the last one that is not stopped speaks for the resource
	devices map[string]*v1beta1.Device
	order   []string // device IDs as last listed
	stopped bool     // no plugin speaks for it: no device counts as healthy
}

// client is the connection to one plugin socket.
type client struct {
	endpoint string
	conn     *grpc.ClientConn
	plugin   v1beta1.DevicePluginClient
	options  *v1beta1.DevicePluginOptions
	cancel   context.CancelFunc
	lost     bool // 1.37's wedge: its stream's end is not noticed, its path stays taken
}

func (r *resource) closeAll() {
	for _, c := range r.clients {
		c.close()
	}
}

func (c *client) close() {
	c.cancel()
	c.conn.Close()
}

// current is the plugin that calls go to, or nil.
func (r *resource) current() *client {
	if r.stopped || len(r.clients) == 0 {
		return nil
	}
	return r.clients[len(r.clients)-1]
}

// registration serves kubelet.sock.
type registration struct {
	v1beta1.UnimplementedRegistrationServer
	kubelet *Kubelet
}

// Register validates the request, dials the plugin back before it answers, and opens the list stream afterwards.
func (s *registration) Register(_ context.Context, request *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	err := s.kubelet.register(request)
	s.kubelet.observe(Message{Method: "Register", Resource: request.GetResourceName(), Endpoint: request.GetEndpoint(),
		Request: request, Response: &v1beta1.Empty{}, Err: err})
	if err != nil {
		return nil, err
	}
	return &v1beta1.Empty{}, nil
}

func (k *Kubelet) register(request *v1beta1.RegisterRequest) error {
	k.mu.Lock()
	k.attempts++
	attempt := k.attempts
	k.mu.Unlock()
	name, endpoint := request.GetResourceName(), request.GetEndpoint()
	if err := checkRequest(request); err != nil {
		return err
	}
	c, err := k.dial(name, endpoint)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.server == nil {
		c.close()
		return errors.New("the kubelet is stopping")
	}
	r, ok := k.resources[name]
	if !ok {
		r = &resource{devices: map[string]*v1beta1.Device{}}
		k.resources[name] = r
	}
	if k.opts.Model == Model137 {
		for _, other := range r.clients {
			if other.endpoint == endpoint {
				other.lost = true
				c.close()
				return fmt.Errorf("device plugin already connected: %s", filepath.Join(k.PluginDir(), endpoint))
			}
		}
	}
	r.clients = append(r.clients, c)
	r.stopped = false
	k.registers[name]++
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	if k.opts.IgnoreLists == nil || !k.opts.IgnoreLists(attempt) {
		k.serving.Go(func() { k.consume(ctx, name, r, c) })
	}
	k.notifyLocked()
	return nil
}

// checkRequest has the kubelet's own rules, in its order.
func checkRequest(request *v1beta1.RegisterRequest) error {
	name := request.GetResourceName()
	if request.GetVersion() != v1beta1.Version {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", request.GetVersion(), v1beta1.Version)
	}
	if !strings.Contains(name, "/") || strings.Contains(name, "kubernetes.io/") || strings.HasPrefix(name, "requests.") {
		return fmt.Errorf("the ResourceName %q is invalid", name)
	}
	if endpoint := request.GetEndpoint(); endpoint == "" || filepath.Base(endpoint) != endpoint {
		return fmt.Errorf("endpoint %q is not a bare file name", endpoint)
	}
	return nil
}

// dial connects to a plugin and asks for its options; the ones in the request are not looked at.
func (k *Kubelet) dial(name, endpoint string) (*client, error) {
	conn, err := grpc.NewClient("unix:"+filepath.Join(k.PluginDir(), endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return nil, fmt.Errorf("dial device plugin: %w", err)
	}
	c := &client{endpoint: endpoint, conn: conn, plugin: v1beta1.NewDevicePluginClient(conn), cancel: func() {}}
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	c.options, err = c.plugin.GetDevicePluginOptions(ctx, &v1beta1.Empty{}, grpc.WaitForReady(true))
	k.observe(Message{Method: "GetDevicePluginOptions", Resource: name, Endpoint: endpoint,
		Request: &v1beta1.Empty{}, Response: c.options, Err: err})
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("failed to get device plugin options: %w", err)
	}
	return c, nil
}

// consume reads one list stream to its end.
func (k *Kubelet) consume(ctx context.Context, name string, r *resource, c *client) {
	stream, err := c.plugin.ListAndWatch(ctx, &v1beta1.Empty{})
	for err == nil {
		var message *v1beta1.ListAndWatchResponse
		message, err = stream.Recv()
		if err == nil {
			k.takeList(name, r, c, message)
		}
	}
	k.observe(Message{Method: "ListAndWatch", Resource: name, Endpoint: c.endpoint, Err: err})
	k.streamEnded(r, c)
}

// takeList replaces the devices of the resource by those of the message.
func (k *Kubelet) takeList(name string, r *resource, c *client, message *v1beta1.ListAndWatchResponse) {
	k.observe(Message{Method: "ListAndWatch", Resource: name, Endpoint: c.endpoint, Response: message})
	k.mu.Lock()
	if k.resources[name] == r && r.current() == c {
		r.devices = map[string]*v1beta1.Device{}
		r.order = nil
		for _, d := range message.GetDevices() {
			r.devices[d.GetID()] = d
			r.order = append(r.order, d.GetID())
		}
		// A checkpoint that cannot be written is logged by the real kubelet, and nothing else happens.
		_ = k.writeCheckpointLocked()
	}
	k.notifyLocked()
	k.mu.Unlock()
	k.pushList(List{Resource: name, Endpoint: c.endpoint, Message: message})
}

// streamEnded does what each model does when a plugin goes away.
func (k *Kubelet) streamEnded(r *resource, c *client) {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer k.notifyLocked()
	if c.lost {
		return // nobody notices: its devices stay healthy, its path stays taken
	}
	for i, other := range r.clients {
		if other == c {
			r.clients = append(r.clients[:i], r.clients[i+1:]...)
			break
		}
	}
	c.close()
	if k.opts.Model == Model136 || len(r.clients) == 0 {
		r.stopped = true
	}
}

// DropLists ends the list streams of a resource from the kubelet's side, and nothing else; a plugin that wants to be
// seen has to register again.
func (k *Kubelet) DropLists(resourceName string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r, ok := k.resources[resourceName]; ok {
		for _, c := range r.clients {
			c.cancel()
		}
	}
}

// Registrations returns how many registrations of a resource were accepted since Start.
func (k *Kubelet) Registrations(resourceName string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.registers[resourceName]
}

// Attempts returns how many Register calls arrived since Start, accepted or not.
func (k *Kubelet) Attempts() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.attempts
}

// Counts returns a resource's capacity (devices known) and allocatable (devices that are healthy and whose plugin
// is there), as the node's status shows them.
func (k *Kubelet) Counts(resourceName string) (capacity, allocatable int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, ok := k.resources[resourceName]
	if !ok {
		return 0, 0
	}
	for _, d := range r.devices {
		if r.healthy(d.GetID()) {
			allocatable++
		}
	}
	return len(r.devices), allocatable
}

func (r *resource) healthy(id string) bool {
	d, ok := r.devices[id]
	return ok && !r.stopped && d.GetHealth() == v1beta1.Healthy
}

// WaitAllocatable waits until exactly want devices of a resource are allocatable; the error of a ctx that ended
// says how many there were.
func (k *Kubelet) WaitAllocatable(ctx context.Context, resourceName string, want int) error {
	for {
		k.mu.Lock()
		changed := k.changed
		k.mu.Unlock()
		capacity, allocatable := k.Counts(resourceName)
		if allocatable == want {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s: allocatable %d of %d, want %d: %w", resourceName, allocatable, capacity, want, ctx.Err())
		}
	}
}
