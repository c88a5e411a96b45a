// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// CDI devices, for StrategyCDI: a name that no spec file defines is a hard failure at container start, so slices
// of such a GPU are not offered. The spec files are the NVIDIA container toolkit's; nothing is written here.

package plugin

import (
	"errors"
	"fmt"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

// ReasonCDI is the reason of a free slice whose GPU no CDI spec file defines.
const ReasonCDI = "cdi-unresolved"

// ValidateCDIKind checks that kind is a vendor and a class by CDI's own rules; its error says the rule.
func ValidateCDIKind(kind string) error {
	vendor, class, found := strings.Cut(kind, "/")
	if !found {
		return errors.New("want <vendor>/<class>, such as nvidia.com/gpu")
	}
	if err := errors.Join(parser.ValidateVendorName(vendor), parser.ValidateClassName(class)); err != nil {
		return fmt.Errorf("want <vendor>/<class>, such as nvidia.com/gpu: %w", oneLine(err))
	}
	return nil
}

// cdiName is a GPU's fully qualified CDI device name.
func cdiName(kind, uuid string) string { return kind + "=" + uuid }

// unresolvedCDI returns those of uuids that no spec file in dirs defines as a device of kind, and an error that
// names them. An empty dirs means the directories that runtimes use by default.
func unresolvedCDI(kind string, uuids, dirs []string) (map[string]bool, error) {
	if len(dirs) == 0 {
		dirs = cdi.DefaultSpecDirs
	}
	cache, err := cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(dirs...))
	if err != nil {
		return nil, fmt.Errorf("read CDI specs: %w", err)
	}
	broken := cache.Refresh() // faults of any spec file, also of ones that are not about us
	missing := map[string]bool{}
	var names []string
	for _, uuid := range uuids {
		if cache.GetDevice(cdiName(kind, uuid)) == nil {
			missing[uuid] = true
			names = append(names, cdiName(kind, uuid))
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	err = fmt.Errorf("no CDI spec file in %s defines %s: have the NVIDIA container toolkit write one that names devices by UUID",
		strings.Join(dirs, ", "), strings.Join(names, ", "))
	if broken != nil {
		err = errors.Join(err, oneLine(broken))
	}
	return missing, err
}

// oneLine is for errors that are joined from several.
func oneLine(err error) error {
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}
