// SPDX-License-Identifier: GPL-2.0
#include "selftest.h"
int show_timings(void) { return 0; }
