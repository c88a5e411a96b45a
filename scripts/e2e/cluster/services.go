// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package cluster

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/vgpud/vgpud/scripts/e2e/node"
)

// startControlPlane returns when the API server is ready and its clients are started.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	pki := func(name string) string { return filepath.Join(c.path("pki"), name) }
	if err := c.start("etcd", c.config.Etcd, "--data-dir=/run/etcd", "--listen-client-urls="+etcdAddress,
		"--advertise-client-urls="+etcdAddress, "--listen-peer-urls=http://127.0.0.1:2380",
		"--initial-advertise-peer-urls=http://127.0.0.1:2380", "--initial-cluster=default=http://127.0.0.1:2380",
	); err != nil {
		return err
	}
	if err := c.start("kube-apiserver", c.bin("kube-apiserver"), "--etcd-servers="+etcdAddress,
		"--bind-address=127.0.0.1", "--advertise-address="+node.Address, "--secure-port=6443",
		"--tls-cert-file="+pki("apiserver.crt"), "--tls-private-key-file="+pki("apiserver.key"),
		"--client-ca-file="+pki("ca.crt"), "--cert-dir=/run/kube-apiserver", "--token-auth-file="+pki("tokens.csv"),
		"--kubelet-preferred-address-types=InternalIP", // else logs and exec look up the node's name in DNS
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--service-cluster-ip-range=203.0.113.0/24", "--endpoint-reconciler-type=none", "--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+pki("sa.pub"),
		"--service-account-signing-key-file="+pki("sa.key"),
	); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	if err := c.await(ctx, "API server", func() bool {
		_, err := c.API.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil
	}); err != nil {
		return err
	}
	c.config.Progress("API server ready")
	for name, args := range map[string][]string{
		"scheduler": {"kube-scheduler"},
		"controller-manager": {"kube-controller-manager", "--service-account-private-key-file=" + pki("sa.key"),
			"--root-ca-file=" + pki("ca.crt"), "--use-service-account-credentials=true"},
	} {
		args = append([]string{c.bin(args[0]), "--kubeconfig=" + pki(name+".kubeconfig"), "--bind-address=127.0.0.1",
			"--leader-elect=false", "--authentication-skip-lookup=true"}, args[1:]...)
		if err := c.start("kube-"+name, args...); err != nil {
			return err
		}
	}
	return nil
}

// awaitServiceAccount returns when the default namespace can take pods.
func (c *Cluster) awaitServiceAccount(ctx context.Context) error {
	return c.await(ctx, "default service account", func() bool {
		_, err := c.API.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
}

// connect makes the admin's client, which dials from inside the node's network namespace.
func (c *Cluster) connect() (err error) {
	c.rest = &rest.Config{
		Host: "https://" + apiAddress, BearerToken: c.adminToken, Dial: c.Node.DialContext, QPS: 200, Burst: 400,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(c.path("pki"), "ca.crt")},
	}
	c.API, err = kubernetes.NewForConfig(c.rest)
	return err
}

// startRuntime returns when containerd runs and has all images.
func (c *Cluster) startRuntime(ctx context.Context) error {
	p := c.Node.NewProcess("containerd", c.bin("containerd"), "--config", c.path("etc/containerd.toml"))
	p.Env = []string{"PATH=" + c.config.BinDir + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	if err := c.startProcess(p); err != nil {
		return err
	}
	ctr := func(args ...string) error {
		_, err := c.Node.Output(ctx, nil, c.bin("ctr"), append([]string{"--namespace", "k8s.io"}, args...)...)
		return err
	}
	if err := c.await(ctx, "containerd", func() bool { return ctr("version") == nil }); err != nil {
		return err
	}
	for _, archive := range c.config.Archives {
		if err := ctr("images", "import", "--all-platforms", archive); err != nil {
			return fmt.Errorf("import image: %w", err)
		}
	}
	c.config.Progress("containerd has the images")
	return nil
}

func (c *Cluster) startKubelet(ctx context.Context) error {
	c.Kubelet = c.Node.NewProcess("kubelet", c.bin("kubelet"), "--config="+c.path("etc/kubelet.yaml"),
		"--hostname-override="+node.Name, "--node-ip="+node.Address,
		"--kubeconfig="+filepath.Join(c.path("pki"), "kubelet.kubeconfig"))
	if err := c.StartKubelet(ctx); err != nil {
		return err
	}
	if err := c.await(ctx, "node ready", func() bool {
		n, err := c.API.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return true
			}
		}
		return false
	}); err != nil {
		return err
	}
	c.config.Progress("node ready")
	return nil
}

// StartKubelet starts kubelet, which must not run, and returns when it says that it is healthy.
func (c *Cluster) StartKubelet(ctx context.Context) error {
	if err := c.Kubelet.Start(); err != nil {
		return err
	}
	var ended error
	err := c.await(ctx, "kubelet", func() bool {
		if !c.Kubelet.Running() {
			ended = fmt.Errorf("kubelet has ended (%s), see %s", c.Kubelet.State(), c.Kubelet.LogPath())
			return true
		}
		response, err := c.http.Get("http://127.0.0.1:10248/healthz")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	if ended != nil {
		return ended
	}
	return err
}
