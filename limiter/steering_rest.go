// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package limiter

import "bytes"

// Stirred says whether anything may have happened in the compute books since the last Meter: one system call, where Meter
// needs three and looks at what it read. For an allocation that rests. It does not see that the usage page was replaced.
func (s *Steering) Stirred() bool {
	if s.usage == nil || s.limits.Devices == nil {
		return true
	}
	if len(s.glance) != len(s.head.bytes()) {
		s.glance = make([]byte, len(s.head.bytes()))
	}
	read, err := s.usage.ReadAt(s.glance, 0)
	return err != nil || read != len(s.glance) || !bytes.Equal(s.glance, s.head.bytes())
}
