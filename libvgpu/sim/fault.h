/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * fault.h - injected faults (see `gpusim fault`), applied at the beginning of a call.
 */
#ifndef GPUSIM_FAULT_H
#define GPUSIM_FAULT_H

#include <stdint.h>

/* Waits as long as the armed faults that match say, then answers the result that the call must return instead
 * of doing its work, or 0. `gpu`: index in the region of the card that the call is about, -1 if none. */
int gs_fault_apply(uint32_t function, int gpu);

#endif
