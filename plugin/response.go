// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What a container gets: the allocate response of a record. Pure.

package plugin

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vgpud/vgpud/plugin/ledger"
)

// Names that appear in containers and on the host.
const (
	// AllocationVariable carries the allocation key. It is how an allocation is found again in the kubelet's
	// checkpoint, which keeps the response next to the pod's UID.
	AllocationVariable = "VGPUD_ALLOCATION"
	// ComputeVariable tells users which rule holds for their GPU time; nothing reads it. See ComputeText.
	ComputeVariable = "VGPUD_COMPUTE"
	// PreloadFile is what the dynamic loader of every program in the container reads.
	PreloadFile = "/etc/ld.so.preload"

	libraryName = "libvgpu.so"
	preloadName = "ld.so.preload"
	limitsName  = "limits"
	usageName   = "usage"

	visibleDevices = "NVIDIA_VISIBLE_DEVICES"
	noDevices      = "void" // tells the NVIDIA runtime to add nothing: CDI does
)

// Response builds what the kubelet keeps and replays for the container's life, so everything it names has to stay
// valid that long: the library by build ID, the preload file by build ID and container directory, the pages by
// allocation key.
func Response(rec ledger.Record, cfg Config) *v1beta1.ContainerAllocateResponse {
	uuids := make([]string, 0, len(rec.Grants))
	for _, g := range rec.Grants {
		uuids = append(uuids, g.UUID)
	}
	response := &v1beta1.ContainerAllocateResponse{
		Envs:   map[string]string{AllocationVariable: rec.Key, ComputeVariable: computeTexts(rec.Grants)},
		Mounts: mounts(rec, cfg),
	}
	if cfg.Strategy == StrategyCDI {
		response.Envs[visibleDevices] = noDevices
		for _, uuid := range uuids {
			response.CdiDevices = append(response.CdiDevices, &v1beta1.CDIDevice{Name: cdiName(cfg.CDIKind, uuid)})
		}
	} else {
		response.Envs[visibleDevices] = strings.Join(uuids, ",")
	}
	return response
}

// computeTexts is the value of ComputeVariable: one text where it holds for every GPU, otherwise one for each, after its
// UUID.
func computeTexts(grants []ledger.Grant) string {
	texts := make([]string, 0, len(grants))
	for _, g := range grants {
		texts = append(texts, ComputeText(g.Compute))
	}
	if len(slices.Compact(slices.Clone(texts))) == 1 {
		return texts[0]
	}
	for i, g := range grants {
		texts[i] = g.UUID + " " + texts[i]
	}
	return strings.Join(texts, "; ")
}

// ComputeText says how GPU time is limited, in percent of a GPU: "none", "hard share=30", "elastic share=30 ceiling=100".
func ComputeText(c ledger.Compute) string {
	switch c.Mode {
	case ledger.ComputeHard:
		return c.Mode + " share=" + PercentText(c.SharePPM)
	case ledger.ComputeElastic:
		return c.Mode + " share=" + PercentText(c.SharePPM) + " ceiling=" + PercentText(c.CeilingPPM)
	}
	return ledger.ComputeNone
}

// PercentText writes millionths as a percentage with as many decimals as they need: 30, 33.3333.
func PercentText(ppm uint32) string {
	return strconv.FormatFloat(float64(ppm)*100/ledger.WholePPM, 'f', -1, 64)
}

// mounts lists the four files of an allocation: each is bound by itself, never a directory.
func mounts(rec ledger.Record, cfg Config) []*v1beta1.Mount {
	host := pagesPath(rec)
	inside := filepath.Join(rec.Library.ContainerDir, "alloc", rec.Key)
	return []*v1beta1.Mount{
		{ContainerPath: filepath.Join(rec.Library.ContainerDir, libraryName), HostPath: libraryPath(cfg.LibraryDir, rec.Library), ReadOnly: true},
		{ContainerPath: PreloadFile, HostPath: preloadPath(cfg.LibraryDir, rec.Library), ReadOnly: true},
		{ContainerPath: filepath.Join(inside, limitsName), HostPath: filepath.Join(host, limitsName), ReadOnly: true},
		{ContainerPath: filepath.Join(inside, usageName), HostPath: filepath.Join(host, usageName)},
	}
}

// MountedFile is one file of an allocation: where its container finds it, and where it is on the host.
type MountedFile struct{ ContainerPath, HostPath string }

// MountedFiles are the files that a container of the allocation is to see.
func MountedFiles(rec ledger.Record, libraryDir string) []MountedFile {
	var files []MountedFile
	for _, mount := range mounts(rec, Config{LibraryDir: libraryDir}) {
		files = append(files, MountedFile{mount.ContainerPath, mount.HostPath})
	}
	return files
}

// pagesPath is the host directory of an allocation's pages.
func pagesPath(rec ledger.Record) string { return filepath.Join(rec.PagesDir, rec.Key) }

// preloadContent is the one line of the preload file: the library's path as the container sees it.
func preloadContent(containerDir string) string {
	return filepath.Join(containerDir, libraryName) + "\n"
}
