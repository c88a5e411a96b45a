// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ErrNoCluster is returned by New when the agent runs in no pod and was given no kubeconfig.
var ErrNoCluster = errors.New("not in a pod of a cluster, and no kubeconfig is given")

// requestPatience bounds one request.
const requestPatience = 10 * time.Second

// clientConfig is how the API server is reached: by a kubeconfig where there is one, else as a pod.
func clientConfig(kubeconfig string) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	} else if config, err = rest.InClusterConfig(); errors.Is(err, rest.ErrNotInCluster) {
		return nil, ErrNoCluster
	}
	if err != nil {
		return nil, fmt.Errorf("configure API client: %w", err)
	}
	config.Timeout = requestPatience
	config.UserAgent = "vgpud"
	config.QPS = -1                           // the Recorder bounds what it sends
	config.WarningHandler = rest.NoWarnings{} // they would go to klog
	return config, nil
}

// api sends events. Its calls are made by one goroutine.
type api struct {
	events dynamic.NamespaceableResourceInterface
	node   string
	last   int64 // time in the name that was given last
}

func newAPI(kubeconfig, node string) (*api, error) {
	config, err := clientConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	return &api{events: client.Resource(eventsv1.SchemeGroupVersion.WithResource("events")), node: node}, nil
}

// reference is the object as the API server names it.
func (a *api) reference(o Object) corev1.ObjectReference {
	if o == (Object{}) {
		// As the kubelet does: the agent needs no right to read its node.
		return corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: a.node, UID: types.UID(a.node)}
	}
	return corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: o.Namespace, Name: o.Pod, UID: types.UID(o.UID)}
}

// place is the namespace and a name for a new event about the object. No two names are the same, whatever the clock says: an
// event that is there already counts as told.
func (a *api) place(o Object, at time.Time) (namespace, name string) {
	reference := a.reference(o)
	if namespace = reference.Namespace; namespace == "" {
		namespace = nodeNamespace
	}
	object := reference.Name
	if len(object) > longestObjectName {
		object = object[:longestObjectName] + "x" // whatever it ends with then
	}
	a.last = max(at.UnixNano(), a.last+1)
	return namespace, fmt.Sprintf("%s.%x", object, a.last)
}

// create tells a new event. One that is there already was told by a request whose answer was lost.
func (a *api) create(ctx context.Context, e Event, s *series) error {
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	object := &eventsv1.Event{
		TypeMeta:            metav1.TypeMeta{APIVersion: eventsv1.SchemeGroupVersion.String(), Kind: "Event"},
		ObjectMeta:          metav1.ObjectMeta{Namespace: s.namespace, Name: s.name},
		EventTime:           metav1.NewMicroTime(s.first),
		ReportingController: reportingName,
		ReportingInstance:   printable(a.node, longestInstance),
		Action:              e.Action,
		Reason:              e.Reason,
		Type:                kind,
		Note:                printable(e.Note, longestNote),
		Regarding:           a.reference(e.Regarding),
	}
	if e.Related != (Object{}) {
		related := a.reference(e.Related)
		object.Related = &related
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return fmt.Errorf("render event: %w", err)
	}
	_, err = a.events.Namespace(s.namespace).Create(ctx, &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// count tells how often a series happened until now.
func (a *api) count(ctx context.Context, s *series) error {
	patch, err := json.Marshal(map[string]any{"series": eventsv1.EventSeries{Count: int32(min(s.count, 1<<31-1)), LastObservedTime: metav1.NewMicroTime(s.last)}})
	if err != nil {
		return fmt.Errorf("render series: %w", err)
	}
	_, err = a.events.Namespace(s.namespace).Patch(ctx, s.name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// isLost says whether trying again is of no use: the API server has understood, and refuses.
func isLost(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err) ||
		apierrors.IsMethodNotSupported(err) || apierrors.IsRequestEntityTooLargeError(err)
}
