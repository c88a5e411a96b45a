// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Which functions of the driver's library are probed, and what a probe is told of each. Launches are not here and must
// never be: they are 10^4 to 10^6 a second.
//
// To add a function: a row with its exported name, its class, and where it says its bytes. Graphs' copies, prefetches and
// batches (cuMemcpyBatchAsync, cuMemcpy3DBatchAsync), whose bytes are in lists in memory, are not seen.

package bpf

// class is what a call is counted as; the numbers are those of calls.h.
type class uint8

const (
	hostToDevice class = iota
	deviceToHost
	deviceToDevice
	peerToPeer
	untold // copies between unified addresses: the call does not tell which way
	allocation
	stall
	countedClasses // the classes with a count of their own
)

const (
	create  = countedClasses + iota // contexts
	retain                          // primary contexts
	destroy                         // either
)

// form is where a call says its bytes; the numbers are those of calls.h.
type form uint8

const (
	noBytes form = iota
	argument
	argument32
	pitch
	rectangle
	box
	boxPeer
	array
	array3D
)

// function is one exported function.
type function struct {
	name     string
	class    class
	form     form
	argument uint8 // number of the argument that says the bytes, from 0
}

// cookie is what the kernel hands to the program at each hit.
func (f function) cookie() uint64 {
	return uint64(f.class) | uint64(f.form)<<8 | uint64(f.argument)<<16
}

// rare says that programs call it so seldom that a hit may cost tens of microseconds. It is what is probed where probes
// are dear (mode sampled): enough for a witness that somebody uses the card.
func (f function) rare() bool {
	return f.class == create || f.class == retain || f.class == destroy || f.class == allocation
}

// functions are all that are probed, of every version of the driver's interface that is known.
var functions = []function{
	{"cuMemcpyHtoD", hostToDevice, argument32, 2},
	{"cuMemcpyHtoD_v2", hostToDevice, argument, 2},
	{"cuMemcpyHtoD_v2_ptds", hostToDevice, argument, 2},
	{"cuMemcpyHtoDAsync", hostToDevice, argument32, 2},
	{"cuMemcpyHtoDAsync_v2", hostToDevice, argument, 2},
	{"cuMemcpyHtoDAsync_v2_ptsz", hostToDevice, argument, 2},
	{"cuMemcpyHtoA", hostToDevice, argument32, 3},
	{"cuMemcpyHtoA_v2", hostToDevice, argument, 3},
	{"cuMemcpyHtoA_v2_ptds", hostToDevice, argument, 3},
	{"cuMemcpyHtoAAsync", hostToDevice, argument32, 3},
	{"cuMemcpyHtoAAsync_v2", hostToDevice, argument, 3},
	{"cuMemcpyHtoAAsync_v2_ptsz", hostToDevice, argument, 3},

	{"cuMemcpyDtoH", deviceToHost, argument32, 2},
	{"cuMemcpyDtoH_v2", deviceToHost, argument, 2},
	{"cuMemcpyDtoH_v2_ptds", deviceToHost, argument, 2},
	{"cuMemcpyDtoHAsync", deviceToHost, argument32, 2},
	{"cuMemcpyDtoHAsync_v2", deviceToHost, argument, 2},
	{"cuMemcpyDtoHAsync_v2_ptsz", deviceToHost, argument, 2},
	{"cuMemcpyAtoH", deviceToHost, argument32, 3},
	{"cuMemcpyAtoH_v2", deviceToHost, argument, 3},
	{"cuMemcpyAtoH_v2_ptds", deviceToHost, argument, 3},
	{"cuMemcpyAtoHAsync", deviceToHost, argument32, 3},
	{"cuMemcpyAtoHAsync_v2", deviceToHost, argument, 3},
	{"cuMemcpyAtoHAsync_v2_ptsz", deviceToHost, argument, 3},

	{"cuMemcpyDtoD", deviceToDevice, argument32, 2},
	{"cuMemcpyDtoD_v2", deviceToDevice, argument, 2},
	{"cuMemcpyDtoD_v2_ptds", deviceToDevice, argument, 2},
	{"cuMemcpyDtoDAsync", deviceToDevice, argument32, 2},
	{"cuMemcpyDtoDAsync_v2", deviceToDevice, argument, 2},
	{"cuMemcpyDtoDAsync_v2_ptsz", deviceToDevice, argument, 2},
	{"cuMemcpyDtoA", deviceToDevice, argument32, 3},
	{"cuMemcpyDtoA_v2", deviceToDevice, argument, 3},
	{"cuMemcpyDtoA_v2_ptds", deviceToDevice, argument, 3},
	{"cuMemcpyAtoD", deviceToDevice, argument32, 3},
	{"cuMemcpyAtoD_v2", deviceToDevice, argument, 3},
	{"cuMemcpyAtoD_v2_ptds", deviceToDevice, argument, 3},
	{"cuMemcpyAtoA", deviceToDevice, argument32, 4},
	{"cuMemcpyAtoA_v2", deviceToDevice, argument, 4},
	{"cuMemcpyAtoA_v2_ptds", deviceToDevice, argument, 4},

	{"cuMemcpyPeer", peerToPeer, argument, 4},
	{"cuMemcpyPeer_ptds", peerToPeer, argument, 4},
	{"cuMemcpyPeerAsync", peerToPeer, argument, 4},
	{"cuMemcpyPeerAsync_ptsz", peerToPeer, argument, 4},
	{"cuMemcpy3DPeer", peerToPeer, boxPeer, 0},
	{"cuMemcpy3DPeer_ptds", peerToPeer, boxPeer, 0},
	{"cuMemcpy3DPeerAsync", peerToPeer, boxPeer, 0},
	{"cuMemcpy3DPeerAsync_ptsz", peerToPeer, boxPeer, 0},

	{"cuMemcpy", untold, argument, 2},
	{"cuMemcpy_ptds", untold, argument, 2},
	{"cuMemcpyAsync", untold, argument, 2},
	{"cuMemcpyAsync_ptsz", untold, argument, 2},
	{"cuMemcpy2D_v2", untold, rectangle, 0},
	{"cuMemcpy2D_v2_ptds", untold, rectangle, 0},
	{"cuMemcpy2DUnaligned_v2", untold, rectangle, 0},
	{"cuMemcpy2DUnaligned_v2_ptds", untold, rectangle, 0},
	{"cuMemcpy2DAsync_v2", untold, rectangle, 0},
	{"cuMemcpy2DAsync_v2_ptsz", untold, rectangle, 0},
	{"cuMemcpy3D_v2", untold, box, 0},
	{"cuMemcpy3D_v2_ptds", untold, box, 0},
	{"cuMemcpy3DAsync_v2", untold, box, 0},
	{"cuMemcpy3DAsync_v2_ptsz", untold, box, 0},

	{"cuMemAlloc", allocation, argument32, 1},
	{"cuMemAlloc_v2", allocation, argument, 1},
	{"cuMemAllocPitch_v2", allocation, pitch, 0},
	{"cuMemAllocManaged", allocation, argument, 1},
	{"cuMemAllocAsync", allocation, argument, 1},
	{"cuMemAllocAsync_ptsz", allocation, argument, 1},
	{"cuMemAllocFromPoolAsync", allocation, argument, 1},
	{"cuMemAllocFromPoolAsync_ptsz", allocation, argument, 1},
	{"cuMemCreate", allocation, argument, 1},
	{"cuArrayCreate_v2", allocation, array, 1},
	{"cuArray3DCreate_v2", allocation, array3D, 1},
	{"cuMipmappedArrayCreate", allocation, array3D, 1},

	{"cuCtxSynchronize", stall, noBytes, 0},
	{"cuCtxSynchronize_v2", stall, noBytes, 0},
	{"cuStreamSynchronize", stall, noBytes, 0},
	{"cuStreamSynchronize_ptsz", stall, noBytes, 0},
	{"cuEventSynchronize", stall, noBytes, 0},

	{"cuCtxCreate", create, noBytes, 0},
	{"cuCtxCreate_v2", create, noBytes, 0},
	{"cuCtxCreate_v3", create, noBytes, 0},
	{"cuCtxCreate_v4", create, noBytes, 0},
	{"cuDevicePrimaryCtxRetain", retain, noBytes, 0},
	{"cuCtxDestroy", destroy, noBytes, 0},
	{"cuCtxDestroy_v2", destroy, noBytes, 0},
	{"cuDevicePrimaryCtxRelease", destroy, noBytes, 0},
	{"cuDevicePrimaryCtxRelease_v2", destroy, noBytes, 0},
	{"cuDevicePrimaryCtxReset", destroy, noBytes, 0},
	{"cuDevicePrimaryCtxReset_v2", destroy, noBytes, 0},
}

// vital are the functions without which a library that calls itself the driver's hides what its users do.
var vital = []string{"cuDevicePrimaryCtxRetain", "cuCtxCreate_v2", "cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuCtxSynchronize"}
