// SPDX-License-Identifier: Apache-2.0
// See command_window.h.
#include "command_window.h"

#include <algorithm>

#include "gate_inside.h"
#include "pager/pager.h"

namespace lunar::redis {
namespace {

constexpr uint64_t kPagesEach = 32;  // of the budget, for each command

}  // namespace

unsigned window_commands(unsigned least, unsigned most) {
  return static_cast<unsigned>(
      std::clamp<uint64_t>(pager_budget_pages() / kPagesEach, least, most));
}

bool look_up_in_window(const char* buffer, const WindowCommand& command,
                       NonresidentRanges* missing) {
  Gate& g = gate();
  const Parse parse =
      parse_command(buffer + command.begin, command.end - command.begin, &g.command);
  if (parse != Parse::kCommand || g.command.kept == 0) return true;
  const CommandKeys* keys = find_command_keys(g.command.argument[0]);
  const DatabaseView* where = g.layout.database(command.database);
  return keys == nullptr || where == nullptr ||
         look_up_command(g.layout, *where, *keys, g.command, command.rounds == 0, nullptr, missing);
}

}  // namespace lunar::redis
