# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# A program of PyCUDA that uses a GPU in the ways that PyCUDA offers and prints what came of it, which is the same in every
# run. Its kernels do nothing; the simulated GPU reads from a name how long one takes: 180 x 10 ms in all.

import sys

import numpy
import pycuda.driver as cuda

PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry busy_10ms(.param .u64 data, .param .u32 count)
{
 ret;
}
"""
LAUNCHES = 60

cuda.init()
context = cuda.Device(0).make_context()
try:
    function = cuda.module_from_buffer(PTX).get_function("busy_10ms")
    values = numpy.arange(1 << 16, dtype=numpy.float32)
    data = cuda.mem_alloc(values.nbytes)
    cuda.memcpy_htod(data, values)
    print("ready=1", flush=True)

    for _ in range(LAUNCHES):  # arguments by value, in the "extra" buffer
        function(data, numpy.uint32(values.size), block=(256, 1, 1), grid=(1024, 1))
    context.synchronize()
    print("called", LAUNCHES)

    function.prepare("PI")
    streams = [cuda.Stream() for _ in range(3)]
    begin, end = cuda.Event(), cuda.Event()
    begin.record(streams[0])
    for i in range(LAUNCHES):
        function.prepared_async_call((1024, 1), (256, 1, 1), streams[i % 3], data, values.size)
    end.record(streams[0])
    for stream in streams:
        stream.synchronize()
    print("prepared", LAUNCHES, "events in order:", end.time_since(begin) > 0)

    for _ in range(LAUNCHES // 4):  # a program that waits for each
        for _ in range(4):
            function.prepared_call((1024, 1), (256, 1, 1), data, values.size)
        context.synchronize()
    print("waited for", LAUNCHES)

    back = numpy.empty_like(values)
    pinned = cuda.pagelocked_empty(values.shape, values.dtype)
    stream = cuda.Stream()
    cuda.memcpy_dtoh_async(pinned, data, stream)
    stream.synchronize()
    cuda.memcpy_dtoh(back, data)
    print("data is the same:", bool((back == values).all() and (pinned == values).all()))
    try:
        cuda.mem_alloc(1 << 40)
        print("a tebibyte was given")
    except cuda.MemoryError:
        print("a tebibyte was refused")
finally:
    context.pop()
sys.stdout.write("done=1\n")
