// SPDX-License-Identifier: Apache-2.0
// lunar lun: virtual LUNs on physical ones, for people and programs. Each verb has a file, which
// has its flags.
#include "tools/lun/lun_tool.h"
#include "tools/subcommands.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

constexpr Subcommand kVerbs[] = {
    {"create", "make a named virtual LUN", lun_create},
    {"list", "list the LUNs of devices, or of all devices that can be found", lun_list},
    {"info", "show what a device is and can do, its format and members", lun_info},
    {"resize", "grow or shrink a named LUN", lun_resize},
    {"remove", "remove a named LUN and its data", lun_remove},
    {"check", "check a device's format, and repair it", lun_check},
    {"paths", "show the paths to a device and their state", lun_paths},
};

std::string lun_help() {
  return wrapped_help(
      "Usage: lunar lun VERB [ARGUMENT]...\n\n"
      "Virtual LUNs: named pieces of a device or file that carries Lunar's format. `lunar run "
      "--lun URI#NAME` uses one; `lunar run --lun URI` makes a scratch LUN on the same device, "
      "which ends with its last owner.\n\n"
      "Verbs:\n" +
      summaries(kVerbs) +
      "\n"
      "A URI is a path (file or block device), or one of\n"
      "  file:PATH  nvme:/dev/ngXnY  pmem:PATH  capi:/dev/sgN   one device\n"
      "  'stripe:URI;URI'  'paths:URI;URI'                      several as one (in quotes)\n"
      "`lunar lun VERB --help` has the details; each verb takes --json.\n\n"
      "Exit code: 0 done, 2 refused and nothing changed (wrong use, bad input, no consent, too "
      "little space), 3 the metadata is damaged, 4 an I/O error or the like stopped it; `check` "
      "also has 1: needs repair, or was repaired.\n\n"
      "Examples:\n"
      "  lunar lun create /dev/nvme1n1#cache --size 64g --format\n"
      "  lunar lun list\n"
      "  lunar lun resize /dev/nvme1n1#cache +16g\n"
      "  lunar run --lun /dev/nvme1n1#cache -- COMMAND\n");
}

}  // namespace

int cmd_lun(int argc, char** argv) {
  return run_subcommand("lunar lun", "verb", kVerbs, lun_help(), argc, argv);
}

}  // namespace lunar::tools
