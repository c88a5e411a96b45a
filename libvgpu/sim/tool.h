/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * tool.h - the parts of gpusim, the control tool. Each command gets its arguments (after its name) and answers
 * the exit code: 0 done, 1 failed or timed out, 2 wrong use.
 */
#ifndef GPUSIM_TOOL_H
#define GPUSIM_TOOL_H

#include <stdbool.h>

int tool_init(int count, char **arguments);
int tool_set(int count, char **arguments);
int tool_status(int count, char **arguments);
int tool_fault(int count, char **arguments);
int tool_xid(int count, char **arguments);
int tool_wait(int count, char **arguments);
int tool_reset(int count, char **arguments);

/* Cards and who holds how much of them, for people. The caller is attached. */
void tool_print_cards(void);

/* Attaches, or says why not on stderr. */
bool tool_attach(void);

/* Wrong use: prints a line on stderr, answers 2. */
int tool_misuse(const char *what, const char *argument);

/* A whole number in [low, high]. */
bool tool_number(const char *text, long long low, long long high, long long *number);

/* If arguments[*at] is `name` and a value follows, steps over both and answers the value. */
const char *tool_option(int count, char **arguments, int *at, const char *name);

#endif
