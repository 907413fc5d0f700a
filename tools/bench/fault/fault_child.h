// SPDX-License-Identifier: Apache-2.0
// `lunar bench child`: the process that touches memory for `lunar bench fault`, one a system. Not for people.
#pragma once

namespace lunar::tools {
int fault_child_main(int argc, char** argv);
}
