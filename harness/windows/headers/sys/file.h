/* SPDX-License-Identifier: MIT */
#include "windows/posix.h"
