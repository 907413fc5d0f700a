// SPDX-License-Identifier: Apache-2.0
// lunar lun: virtual LUNs on physical ones, for people and programs. One file a verb.
// Threading: one thread. May not be used by runtime/ (it allocates).
#include <cstdio>
#include <cstring>

#include "tools/lun/lun_tool.h"
#include "tools/subcommands.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

const LunVerb kVerbs[] = {
    {"create", "make a named virtual LUN",
     "Usage: lunar lun create URI#NAME --size SIZE [--format] [--erase=WORD] [--yes] [--json]\n\n"
     "Makes virtual LUN NAME of SIZE on the device. A device that already carries Lunar's format "
     "is shared; its other\n"
     "LUNs keep their data.\n\n"
     "  --size SIZE   its size, with k, m, g or t (powers of 1024), in whole blocks of 4 KiB; max: "
     "all that remains\n"
     "  --format      format a blank device first (64 KiB of zeros, no known signature)\n"
     "  --erase=WORD  erase what the device holds and format it. WORD names the content as the "
     "refusal does:\n"
     "                --erase=ext4. Asks, or needs --yes\n"
     "  --yes         do not ask\n",
     1, 1, "--size= --format --erase= --yes", lun_create},
    {"list", "list the LUNs of devices, or of all devices that can be found",
     "Usage: lunar lun list [URI...] [--json]\n\n"
     "Prints one line per virtual LUN, then totals. Without a URI, it looks at every block device "
     "and NVMe namespace\n"
     "in /dev that carries the format and that this user may open. Writes nothing.\n",
     0, 1000, "", lun_list},
    {"info", "show what a device is and can do, its format and members",
     "Usage: lunar lun info URI|URI#NAME [--json]\n\n"
     "Prints geometry, identity, free space, members, and the capabilities that probing found.\n",
     1, 1, "", lun_info},
    {"resize", "grow or shrink a named LUN",
     "Usage: lunar lun resize URI#NAME SIZE|+SIZE|-SIZE|max [--yes] [--json]\n\n"
     "SIZE is the new size; +SIZE and -SIZE are relative to the present one; max is all that "
     "remains. Growing keeps\n"
     "the data and works while the LUN is in use. Shrinking discards the tail: it asks, or needs "
     "--yes, and no other\n"
     "process may have the LUN open.\n",
     2, 2, "--yes", lun_resize},
    {"remove", "remove a named LUN and its data",
     "Usage: lunar lun remove URI#NAME [--yes] [--json]\n\n"
     "Removes the LUN and all its data. Asks, or needs --yes. Refused while the LUN is open.\n",
     1, 1, "--yes", lun_remove},
    {"check", "check a device's format, and repair it",
     "Usage: lunar lun check URI [--repair] [--yes] [--json]\n\n"
     "Checks all copies of the metadata and the owner of each extent, and writes nothing. --repair "
     "rewrites damaged\n"
     "copies and frees what dead owners left; it asks, or needs --yes.\n\n"
     "Exit code: 0 clean, 1 needs repair or was repaired, 2 refused, 3 damaged, 4 the check could "
     "not run.\n",
     1, 1, "--repair --yes", lun_check},
    {"paths", "show the paths to a device and their state",
     "Usage: lunar lun paths URI [--json]\n\n"
     "Prints one line per path of paths:, or per member of stripe:, like AIX's lspath: name of the "
     "device, parent\n"
     "(its adapter or file system), connection, status (Enabled, Failed, Missing), and the number "
     "of I/Os, errors and\n"
     "failovers during the open.\n",
     1, 1, "", lun_paths},
};

std::string lun_help() {
  std::string out =
      "Usage: lunar lun VERB [ARGUMENT]...\n\n"
      "Virtual LUNs: named pieces of a device or file that carries Lunar's format. `lunar run "
      "--lun URI#NAME` uses "
      "one;\n"
      "`lunar run --lun URI` makes a scratch LUN on the same device, which ends with its last "
      "owner.\n\n"
      "Verbs:\n";
  for (const LunVerb& verb : kVerbs) out += text_of("  %-8s %s\n", verb.name, verb.summary);
  out +=
      "\nA URI is a path (file or block device), or one of\n"
      "  file:PATH  nvme:/dev/ngXnY  pmem:PATH  capi:/dev/sgN   one device\n"
      "  stripe:URI;URI  paths:URI;URI                          several as one (quote it, ; is "
      "special to the shell)\n"
      "`lunar lun VERB --help` has the details; each verb takes --json.\n\n"
      "Exit code: 0 done, 2 refused and nothing changed (wrong use, bad input, no consent), 3 the "
      "metadata is "
      "damaged,\n"
      "4 an I/O error or the like stopped it; `check` also has 1: needs repair, or was "
      "repaired.\n\n"
      "Examples:\n"
      "  lunar lun create /dev/nvme1n1#cache --size 64g --format\n"
      "  lunar lun list\n"
      "  lunar lun resize /dev/nvme1n1#cache +16g\n"
      "  lunar run --lun /dev/nvme1n1#cache -- COMMAND\n";
  return out;
}

int unknown_verb(const char* word) {
  std::vector<std::string> known = {"--help"};
  for (const LunVerb& verb : kVerbs) known.push_back(verb.name);
  say_unknown("lunar lun", "verb", word, known);
  return kLunRefused;
}

}  // namespace

int cmd_lun(int argc, char** argv) {
  if (argc < 2) {
    fputs(lun_help().c_str(), stderr);
    return kLunRefused;
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
    fputs(lun_help().c_str(), stdout);
    return 0;
  }
  for (const LunVerb& verb : kVerbs) {
    if (strcmp(argv[1], verb.name) != 0) continue;
    LunLine line;
    if (const int code = parse_lun_line(verb, argc - 1, argv + 1, &line); code != 0) return code;
    if (!line.help) return verb.run(line);
    printf("%s\n  --json        one JSON object on standard output\n  -h, --help    this text\n",
           verb.help);
    return 0;
  }
  return unknown_verb(argv[1]);
}

}  // namespace lunar::tools
