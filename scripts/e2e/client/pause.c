// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors
//
// The only program of the pod sandbox's image: waits to be ended. It stands for Kubernetes' own pause program.

#include <signal.h>
#include <unistd.h>

static void on_signal(int signal_number) {
  _exit(128 + signal_number);
}

int main(void) {
  signal(SIGTERM, on_signal);
  signal(SIGINT, on_signal);
  for (;;) {
    pause();
  }
}
