// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package procs

import (
	"os"
	"strings"
	"time"
)

// podNames tells namespaces and names of pods by the directories that the kubelet keeps their logs in:
// /var/log/pods/NAMESPACE_NAME_UID. That is the one place on a node that names pods without asking anybody.
type podNames struct {
	directory string
	known     map[string][2]string
	read      time.Duration
	ever      bool
}

// relistPods is how often the directory is read at most, for pods that are not in it.
const relistPods = 5 * time.Second

func (p *podNames) of(uid string, now time.Duration) (namespace, pod string) {
	if uid == "" {
		return "", ""
	}
	name, found := p.known[uid]
	if !found && (!p.ever || now-p.read >= relistPods) {
		p.list(now)
		name = p.known[uid]
	}
	return name[0], name[1]
}

func (p *podNames) list(now time.Duration) {
	p.read, p.ever, p.known = now, true, map[string][2]string{}
	entries, err := os.ReadDir(p.directory)
	if err != nil {
		return // not there: pods have no names then
	}
	for _, entry := range entries {
		parts := strings.Split(entry.Name(), "_")
		if len(parts) == 3 {
			p.known[parts[2]] = [2]string{parts[0], parts[1]}
		}
	}
}
