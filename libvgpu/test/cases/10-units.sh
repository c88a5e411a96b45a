# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# The parts that need no driver.
run limits "$bin/limits_test" "$here/testdata/limits.txt" "$here/testdata/cores.txt"
run blocks "$bin/blocks_test"
run failures "$bin/failures_test"
