// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vgpud/vgpud/scripts/e2e/node"
)

// users of the throw-away control plane: file name, user name and group.
var users = [][3]string{
	{"admin", "admin", "system:masters"},
	{"kubelet", "system:node:" + node.Name, "system:nodes"},
	{"scheduler", "system:kube-scheduler", ""},
	{"controller-manager", "system:kube-controller-manager", ""},
}

// writePKI writes into dir what the control plane needs: a CA, a serving certificate, the service accounts' key,
// tokens.csv and one kubeconfig per user. It returns the admin's token.
func writePKI(dir string) (adminToken string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := errors.Join(writeCertificates(dir), writeServiceAccountKey(dir)); err != nil {
		return "", fmt.Errorf("write keys: %w", err)
	}
	var tokens strings.Builder
	for _, user := range users {
		token := strings.ToLower(rand.Text())
		if user[0] == "admin" {
			adminToken = token
		}
		fmt.Fprintf(&tokens, "%s,%s,%s,%q\n", token, user[1], user[1], user[2])
		kubeconfig := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: "https://%s", certificate-authority: "%s"}}]
users: [{name: user, user: {token: %s}}]
contexts: [{name: e2e, context: {cluster: e2e, user: user}}]
current-context: e2e
`, apiAddress, filepath.Join(dir, "ca.crt"), token)
		if err := os.WriteFile(filepath.Join(dir, user[0]+".kubeconfig"), []byte(kubeconfig), 0o600); err != nil {
			return "", err
		}
	}
	return adminToken, os.WriteFile(filepath.Join(dir, "tokens.csv"), []byte(tokens.String()), 0o600)
}

func writeCertificates(dir string) error {
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "vgpud-e2e"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	serving := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(node.Address), net.ParseIP("203.0.113.1")},
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	servingKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return err
	}
	servingDER, err := x509.CreateCertificate(rand.Reader, serving, ca, &servingKey.PublicKey, caKey)
	if err != nil {
		return err
	}
	return errors.Join(
		writePEM(filepath.Join(dir, "ca.crt"), "CERTIFICATE", caDER),
		writePEM(filepath.Join(dir, "apiserver.crt"), "CERTIFICATE", servingDER),
		writeKey(filepath.Join(dir, "apiserver.key"), servingKey),
	)
}

func writeServiceAccountKey(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	return errors.Join(writePEM(filepath.Join(dir, "sa.pub"), "PUBLIC KEY", public),
		writeKey(filepath.Join(dir, "sa.key"), key))
}

func writeKey(name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(name, "EC PRIVATE KEY", der)
}

func writePEM(name, kind string, der []byte) error {
	return os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
