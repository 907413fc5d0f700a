// SPDX-License-Identifier: Apache-2.0
// lunar kv: key/value stores that are kept, for people and programs. A file a verb, or a few of a
// kind. Threading: one thread. May not be used by runtime/ (it allocates).
#include <cstdio>
#include <cstring>
#include <new>

#include "tools/kv/kv_tool.h"
#include "tools/subcommands.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

const Subcommand kVerbs[] = {
    {"create", "make a store on a file or device", kv_create},
    {"info", "show what a store is, holds and takes", kv_info},
    {"check", "read all of a store, and name every damaged record", kv_check},
    {"get", "print the value of a key", kv_get},
    {"set", "give a key a value", kv_set},
    {"del", "delete keys", kv_del},
    {"scan", "list the keys", kv_scan},
    {"load", "set all pairs of a stream; a blank place becomes a store", kv_load},
    {"dump", "write all pairs as a stream", kv_dump},
    {"grow", "take the rest of a place that became larger, or make a file larger", kv_grow},
    {"compact", "free the space of replaced and deleted pairs", kv_compact},
};

std::string kv_help() {
  std::string out =
      "Usage: lunar kv VERB PLACE [ARGUMENT]...\n\n"
      "Key/value stores on a file or device: those of libarkdb with ARK_KV_PERSIST_STORE, and of "
      "this command.\n"
      "info, check, get, scan and dump write nothing. No verb opens a store that another process "
      "writes to.\n\n"
      "Verbs:\n";
  for (const Subcommand& verb : kVerbs) out += text_of("  %-8s %s\n", verb.name, verb.summary);
  out +=
      "\n`lunar kv VERB --help` has the details; each verb takes --json, and --dram for its "
      "memory. A word that begins "
      "with "
      "-\n"
      "and is not a flag comes after --.\n\n"
      "Exit code: 0 done, 1 a key does not exist (check: damage without loss), 2 refused and "
      "nothing changed, 3 "
      "damaged,\n"
      "4 an I/O error, lack of space or the like stopped it, or a stream broke off after some "
      "pairs.\n\n"
      "Examples:\n"
      "  lunar kv create /srv/users.kv --size 10g\n"
      "  lunar kv set /srv/users.kv alice '{\"id\": 1}'\n"
      "  lunar kv dump /srv/users.kv | lunar kv load /dev/nvme1n1\n";
  return out;
}

// A value may be larger than the memory that there is for it. The store ends as by a kill.
int run_verb(const Subcommand& verb, int argc, char** argv) {
  try {
    return verb.run(argc, argv);
  } catch (const std::bad_alloc&) {
    fprintf(stderr,
            "lunar kv %s: no memory is left for a value or for what it lists; what was durable is "
            "kept. Give it more "
            "(ulimit -v, the memory of its cgroup)\n",
            verb.name);
    return kKvFailed;
  }
}

}  // namespace

int cmd_kv(int argc, char** argv) {
  if (argc < 2) {
    fputs(kv_help().c_str(), stderr);
    return kKvRefused;
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
    fputs(kv_help().c_str(), stdout);
    return 0;
  }
  std::vector<std::string> known = {"--help"};
  for (const Subcommand& verb : kVerbs) {
    if (strcmp(argv[1], verb.name) == 0) return run_verb(verb, argc - 1, argv + 1);
    known.push_back(verb.name);
  }
  say_unknown("lunar kv", "verb", argv[1], known);
  return kKvRefused;
}

}  // namespace lunar::tools
