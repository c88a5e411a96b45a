/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * holds.h - when driver calls of our own are not to be made: while a stream captures, even harmless ones could spoil the
 * capture. A capture that is held open for long is the exception: from then on the driver is told that they are to spoil
 * nothing.
 */
#ifndef VGPU_HOLDS_H
#define VGPU_HOLDS_H

#include <stdbool.h>

/* From the return of the first until the second, no such call is made, for 200 ms at least, and in no way that spoils a
 * capture afterwards. Holds nest, over threads too. */
void vgpu_hold(void);
void vgpu_hold_release(void);

/* Whether none may be made now. */
bool vgpu_is_held(void);

/* Around such a call; false: it may not be made. *mode is for the second. */
bool vgpu_hold_enter(int *mode);
void vgpu_hold_leave(int mode);

/* In a forked child. */
void vgpu_holds_forget(void);

#endif
