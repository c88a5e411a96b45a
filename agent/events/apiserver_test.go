// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The events against a real kube-apiserver and etcd, as those of `make e2e`: it takes them as they are, and deploy/rbac.yaml
// allows what is needed and nothing else.

package events

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/vgpud/vgpud/internal/logtest"
	"github.com/vgpud/vgpud/internal/require"
)

// startPatience is for how long a control plane may take to start on a machine that does other things.
const startPatience = 3 * time.Minute

// tokens of the two users: an administrator, and the agent by the name of its service account.
const (
	adminToken = "admin-token"
	agentToken = "agent-token"
	tokenFile  = adminToken + ",admin,admin,\"system:masters\"\n" + agentToken + ",system:serviceaccount:vgpud:vgpud,agent,\"system:serviceaccounts\"\n"
)

// startControlPlane starts both servers, on the loopback alone, and returns the API server's URL.
func startControlPlane(t *testing.T) string {
	t.Helper()
	build := filepath.Join(require.RepoRoot(t), "build", "e2e")
	etcd, apiserver := filepath.Join(build, "tools", "usr", "bin", "etcd"), filepath.Join(build, "bin", "kube-apiserver")
	for _, program := range []string{etcd, apiserver} {
		_, err := os.Stat(program)
		require.Need(t, "kube-apiserver", err == nil, program+" is not built; make e2e builds it")
	}
	dir := t.TempDir()
	clients, peers, secure := freePort(t), freePort(t), freePort(t)
	start(t, dir, etcd, "--data-dir="+filepath.Join(dir, "etcd"), "--listen-client-urls=http://"+clients, "--advertise-client-urls=http://"+clients,
		"--listen-peer-urls=http://"+peers, "--initial-advertise-peer-urls=http://"+peers, "--initial-cluster=default=http://"+peers, "--unsafe-no-fsync")
	key := filepath.Join(dir, "sa.key")
	writeKey(t, key)
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(tokenFile), 0o600); err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(secure)
	if err != nil {
		t.Fatal(err)
	}
	start(t, dir, apiserver, "--etcd-servers=http://"+clients, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port="+port,
		"--cert-dir="+filepath.Join(dir, "certs"), "--token-auth-file="+tokens, "--authorization-mode=RBAC", "--endpoint-reconciler-type=none",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--service-cluster-ip-range=203.0.113.0/24")
	return "https://" + secure
}

// writeKey makes a key for service accounts' tokens, which the API server wants to have.
func writeKey(t *testing.T, path string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start runs a server until the test ends.
func start(t *testing.T, dir, program string, arguments ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(dir, filepath.Base(program)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, arguments...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("last words of %s:\n%s", filepath.Base(program), text[max(0, len(text)-4000):])
		}
	})
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func client(t *testing.T, url, token string) dynamic.Interface {
	t.Helper()
	config := &rest.Config{Host: url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, WarningHandler: rest.NoWarnings{}, QPS: -1}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

var (
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	eventsNow  = schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}
)

// apply creates what a file of deploy/ has.
func apply(t *testing.T, admin dynamic.Interface, name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(require.RepoRoot(t), "deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	resources := map[string]string{"Namespace": "namespaces", "ServiceAccount": "serviceaccounts", "ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings"}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var object unstructured.Unstructured
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		resource := object.GroupVersionKind().GroupVersion().WithResource(resources[object.GetKind()])
		var target dynamic.ResourceInterface = admin.Resource(resource)
		if namespace := object.GetNamespace(); namespace != "" {
			target = admin.Resource(resource).Namespace(namespace)
		}
		if _, err := target.Create(t.Context(), &object, metav1.CreateOptions{}); err != nil {
			t.Fatalf("%s: create %s %s: %v", name, object.GetKind(), object.GetName(), err)
		}
	}
}

func TestRealAPIServer(t *testing.T) {
	url := startControlPlane(t)
	admin := client(t, url, adminToken)
	began := time.Now()
	for deadline := began.Add(startPatience); ; time.Sleep(100 * time.Millisecond) {
		_, err := admin.Resource(namespaces).Get(t.Context(), "default", metav1.GetOptions{})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the API server is not ready after %s: %v", startPatience, err)
		}
	}
	t.Logf("API server ready after %s", time.Since(began).Round(time.Second))
	ml := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "ml"}}}
	if _, err := admin.Resource(namespaces).Create(t.Context(), ml, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	log := &logtest.Buffer{}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]\nusers: [{name: u, user: {token: %s}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n", url, agentToken)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	recorder, err := New(Config{Node: "n1", Kubeconfig: path, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- recorder.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	}()

	// Without rights nothing is told, and the log says which file has them.
	recorder.Offer(Event{Reason: "A", Action: "A", Note: "n"})
	eventually(t, "refused", func() bool { return recorder.Status() == Status{Dropped: 1} })
	if !strings.Contains(log.String(), "deploy/rbac.yaml") {
		t.Errorf("the log says\n%s", log.String())
	}

	apply(t, admin, "rbac.yaml")
	probe := client(t, url, agentToken)
	eventually(t, "rights", func() bool { // the authorizer learns of them a moment later
		_, err := probe.Resource(eventsNow).Namespace("default").Patch(t.Context(), "none", "application/merge-patch+json", []byte("{}"), metav1.PatchOptions{})
		return apierrors.IsNotFound(err)
	})
	long := Event{Reason: ReasonBypass, Action: "Report", Warning: true, Note: strings.Repeat("ä\x00\n", 2000), Regarding: Object{"ml", strings.Repeat("p", 253), "uid"}}
	gone := Event{Reason: ReasonBypass, Action: "Report", Note: "n", Regarding: Object{"no-such-namespace", "p", "uid"}}
	recorder.Offer(contended.Events()...)
	recorder.Offer(Finding{Kind: "no-slot", Tenant: victim, PIDs: []int{7}, Command: "\x1b[2J", Detail: "d", Done: "freeze"}.Event(), long, gone)
	eventually(t, "told", func() bool { return recorder.Status() == Status{Sent: 5, Dropped: 2} })

	list, err := admin.Resource(eventsNow).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, event := range list.Items {
		if controller, _, _ := unstructured.NestedString(event.Object, "reportingController"); controller != reportingName {
			continue
		}
		reason, _, _ := unstructured.NestedString(event.Object, "reason")
		name, _, _ := unstructured.NestedString(event.Object, "regarding", "name")
		found[event.GetNamespace()+" "+reason+" "+name[:min(len(name), 9)]]++
	}
	for _, want := range []string{"default GPUContended n1", "ml GPUSlowedByNeighbour train-7", "ml GPUSlowsNeighbours stream-0", "ml GPUContainerFrozen train-7", "ml GPULimitBypassed ppppppppp"} {
		if found[want] != 1 {
			t.Errorf("%s: %d events, want 1; there are %v", want, found[want], found)
		}
	}

	// The count of a series is taken too.
	namespace, name := recorder.api.place(Object{}, time.Now())
	s := &series{namespace: namespace, name: name, first: time.Now(), last: time.Now(), count: 1}
	if err := recorder.api.create(t.Context(), contended.Events()[0], s); err != nil {
		t.Fatal(err)
	}
	s.count = 7
	if err := recorder.api.count(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	event, err := admin.Resource(eventsNow).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if count, _, _ := unstructured.NestedInt64(event.Object, "series", "count"); count != 7 {
		t.Errorf("the series counts %d, want 7", count)
	}

	// Nothing else is allowed.
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	for what, ask := range map[string]func() error{
		"list events": func() error { _, err := probe.Resource(eventsNow).List(t.Context(), metav1.ListOptions{}); return err },
		"list pods":   func() error { _, err := probe.Resource(pods).List(t.Context(), metav1.ListOptions{}); return err },
		"delete events": func() error {
			return probe.Resource(eventsNow).Namespace(namespace).Delete(t.Context(), name, metav1.DeleteOptions{})
		},
	} {
		if err := ask(); !apierrors.IsForbidden(err) {
			t.Errorf("the agent may %s: %v", what, err)
		}
	}
}
