// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package image makes container images out of files of this machine, without a registry and without a daemon: an OCI
// archive as `ctr images import` takes it. Layers and archives are kept and made again only when a file has changed.
package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
)

// layoutVersion changes when the same files would now give another archive.
const layoutVersion = "1"

// Image is one image: Layers from the lowest to the highest.
type Image struct {
	Name       string // with its tag, as pods name it
	Entrypoint []string
	Layers     []Files
}

// Store is a folder of archives and layers that belongs to this package alone. Not safe for concurrent use.
type Store struct {
	Dir  string
	used map[string]bool
}

// Build writes the image's archive into the store, if it is not there yet, and returns its path.
func (s *Store) Build(img Image) (string, error) {
	var layers []string
	identity := sha256.New()
	fmt.Fprintln(identity, layoutVersion, img.Name, img.Entrypoint)
	for i, files := range img.Layers {
		layer, err := s.buildLayer(files, i == 0)
		if err != nil {
			return "", fmt.Errorf("build image %s: %w", img.Name, err)
		}
		layers = append(layers, layer)
		fmt.Fprintln(identity, filepath.Base(layer))
	}
	archive := filepath.Join(s.Dir, "image-"+shortHash(identity.Sum(nil))+".tar")
	if s.kept(archive) {
		return archive, nil
	}
	if err := writeWhole(archive, func(w io.Writer) error { return writeArchive(w, img, layers) }); err != nil {
		return "", fmt.Errorf("build image %s: %w", img.Name, err)
	}
	return archive, nil
}

// buildLayer writes a layer's tar unless one of the same stamp is there. The lowest layer gets the root's skeleton.
func (s *Store) buildLayer(files Files, lowest bool) (string, error) {
	stamp, err := files.stamp()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Append(nil, layoutVersion, lowest, stamp))
	layer := filepath.Join(s.Dir, "layer-"+shortHash(sum[:])+".tar")
	if s.kept(layer) {
		return layer, nil
	}
	return layer, writeWhole(layer, func(w io.Writer) error { return writeLayer(w, files, lowest) })
}

func writeLayer(w io.Writer, files Files, lowest bool) error {
	tw := tar.NewWriter(w)
	dirs := map[string]bool{".": true, "/": true}
	if lowest {
		for _, name := range []string{"dev", "etc", "proc", "root", "run", "sys", "var"} {
			if err := addDir(tw, dirs, name, 0o755); err != nil {
				return err
			}
		}
		if err := addDir(tw, dirs, "tmp", 0o1777); err != nil {
			return err
		}
		for _, name := range mergedDirs {
			if err := addDir(tw, dirs, "usr/"+name, 0o755); err != nil {
				return err
			}
			link := &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: "usr/" + name, Mode: 0o777}
			if err := tw.WriteHeader(link); err != nil {
				return err
			}
		}
	}
	for _, imagePath := range sortedKeys(files) {
		if err := addFile(tw, dirs, imagePath[1:], files[imagePath]); err != nil {
			return fmt.Errorf("add %s: %w", imagePath, err)
		}
	}
	return tw.Close()
}

func addDir(tw *tar.Writer, dirs map[string]bool, name string, mode int64) error {
	if dirs[name] {
		return nil
	}
	if err := addDir(tw, dirs, path.Dir(name), 0o755); err != nil {
		return err
	}
	dirs[name] = true
	return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode})
}

func addFile(tw *tar.Writer, dirs map[string]bool, name, source string) error {
	if err := addDir(tw, dirs, path.Dir(name), 0o755); err != nil {
		return err
	}
	file, err := os.Open(source)
	if err != nil {
		return err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return err
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: st.Size(), Mode: int64(st.Mode().Perm())}
	if err := tw.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(tw, file)
	return err
}

// descriptor is how OCI documents name a blob; the fields used here only.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

const ociTypes = "application/vnd.oci.image."

func writeArchive(w io.Writer, img Image, layers []string) error {
	tw := tar.NewWriter(w)
	platform := map[string]string{"os": "linux", "architecture": runtime.GOARCH}
	var diffIDs []string
	var layerBlobs []descriptor
	for _, layer := range layers {
		blob, err := addBlobFile(tw, layer)
		if err != nil {
			return err
		}
		layerBlobs = append(layerBlobs, blob)
		diffIDs = append(diffIDs, blob.Digest)
	}
	config, err := addBlobJSON(tw, ociTypes+"config.v1+json", map[string]any{
		"os": platform["os"], "architecture": platform["architecture"],
		"config": map[string]any{"Entrypoint": img.Entrypoint, "WorkingDir": "/", "Env": []string{"PATH=/usr/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs},
	})
	if err != nil {
		return err
	}
	manifest, err := addBlobJSON(tw, ociTypes+"manifest.v1+json", map[string]any{"schemaVersion": 2,
		"mediaType": ociTypes + "manifest.v1+json", "config": config, "layers": layerBlobs})
	if err != nil {
		return err
	}
	manifest.Platform = platform
	manifest.Annotations = map[string]string{"io.containerd.image.name": img.Name}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": ociTypes + "index.v1+json",
		"manifests": []descriptor{manifest}})
	if err != nil {
		return err
	}
	if err := addBytes(tw, "index.json", index); err != nil {
		return err
	}
	if err := addBytes(tw, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	return tw.Close()
}

func addBlobFile(tw *tar.Writer, source string) (descriptor, error) {
	file, err := os.Open(source)
	if err != nil {
		return descriptor{}, err
	}
	defer file.Close()
	hash := sha256.New()
	size, err := io.Copy(hash, file)
	if err != nil {
		return descriptor{}, err
	}
	digest := hex.EncodeToString(hash.Sum(nil))
	blob := descriptor{MediaType: ociTypes + "layer.v1.tar", Digest: "sha256:" + digest, Size: size}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return descriptor{}, err
	}
	if err := tw.WriteHeader(&tar.Header{Name: "blobs/sha256/" + digest, Size: size, Mode: 0o644}); err != nil {
		return descriptor{}, err
	}
	_, err = io.Copy(tw, file)
	return blob, err
}

func addBlobJSON(tw *tar.Writer, mediaType string, document any) (descriptor, error) {
	content, err := json.Marshal(document)
	if err != nil {
		return descriptor{}, err
	}
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: int64(len(content))},
		addBytes(tw, "blobs/sha256/"+digest, content)
}

func addBytes(tw *tar.Writer, name string, content []byte) error {
	if err := tw.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644}); err != nil {
		return err
	}
	_, err := tw.Write(content)
	return err
}

// writeWhole lets write fill a file that appears under its name only when it is complete.
func writeWhole(name string, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(name), "new-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	err = errors.Join(write(file), file.Close())
	if err != nil {
		return err
	}
	return os.Rename(file.Name(), name)
}

// Prune removes what earlier runs left in the store and this one has not used.
func (s *Store) Prune() error {
	names, err := filepath.Glob(filepath.Join(s.Dir, "*"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if !s.used[name] {
			err = errors.Join(err, os.Remove(name))
		}
	}
	return err
}

// kept says whether the store has the file, and remembers that it is in use.
func (s *Store) kept(name string) bool {
	if s.used == nil {
		s.used = map[string]bool{}
	}
	s.used[name] = true
	_, err := os.Stat(name)
	return err == nil
}

func shortHash(sum []byte) string { return hex.EncodeToString(sum[:8]) }

func sortedKeys(f Files) []string { return slices.Sorted(maps.Keys(f)) }
