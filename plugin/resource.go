// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Names of extended resources: the rules a kubelet applies inside Register, applied before we ask it.

package plugin

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// ValidateResourceName checks that name is an extended resource that every kubelet accepts, and names the rule
// that it breaks (kubernetes: pkg/apis/core/v1/helper IsExtendedResourceName, IsQualifiedName).
func ValidateResourceName(name string) error {
	bad := func(rule string) error { return fmt.Errorf("resource name %q is not usable: %s", name, rule) }
	domain, kind, ok := strings.Cut(name, "/")
	switch {
	case !ok:
		return bad("it must contain a slash: <vendor domain>/<resource>")
	case strings.Contains(name, "kubernetes.io/"):
		return bad("it must not contain kubernetes.io/, which belongs to Kubernetes")
	case strings.HasPrefix(name, "requests."):
		return bad("it must not begin with requests., which quota uses")
	case strings.Contains(kind, "/"):
		return bad("it must contain one slash only")
	}
	if rules := validation.IsDNS1123Subdomain(domain); len(rules) > 0 {
		return bad("the part before the slash: " + strings.Join(rules, "; "))
	}
	if rules := validation.IsQualifiedName(name); len(rules) > 0 {
		return bad(strings.Join(rules, "; "))
	}
	// Quota names it requests.<name>, which must be a qualified name too: the domain is 9 characters longer there.
	if rules := validation.IsQualifiedName("requests." + name); len(rules) > 0 {
		return bad("as requests." + name + ": " + strings.Join(rules, "; "))
	}
	return nil
}
