/* SPDX-License-Identifier: Apache-2.0
 * The name that programs written for AIX include. Everything is in capiblock.h. */
#ifndef LUNAR_SYS_CAPIBLOCK_H
#define LUNAR_SYS_CAPIBLOCK_H
#include "../capiblock.h"
#endif
