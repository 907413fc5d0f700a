// SPDX-License-Identifier: Apache-2.0
// lunar kv: persistent key/value stores, for people and programs. A file has one verb, or a few
// similar ones.
#include <cstdio>
#include <new>

#include "tools/kv/kv_tool.h"
#include "tools/subcommands.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

constexpr Subcommand kVerbs[] = {
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
  return wrapped_help(
      "Usage: lunar kv VERB PLACE [ARGUMENT]...\n\n"
      "Key/value stores on a file or device: those of libarkdb with ARK_KV_PERSIST_STORE, and of "
      "this command. info, check, get, scan and dump write nothing. No verb opens a store that "
      "another process writes to.\n\n"
      "Verbs:\n" +
      summaries(kVerbs) +
      "\n"
      "`lunar kv VERB --help` has the details; each verb takes --json, and --dram for its memory. "
      "A word that begins with - and is not a flag comes after --.\n\n"
      "Exit code: 0 done, 1 a key does not exist (check: damage without loss), 2 refused and "
      "nothing changed (too little space, for example), 3 damaged, 4 an I/O error or the like "
      "stopped it, or lack of space after some pairs, or a stream broke off after some pairs.\n\n"
      "Examples:\n"
      "  lunar kv create /srv/users.kv --size 10g\n"
      "  lunar kv set /srv/users.kv alice '{\"id\": 1}'\n"
      "  lunar kv dump /srv/users.kv | lunar kv load /dev/nvme1n1\n");
}

}  // namespace

int cmd_kv(int argc, char** argv) {
  try {
    return run_subcommand("lunar kv", "verb", kVerbs, kv_help(), argc, argv);
  } catch (const std::bad_alloc&) {  // a large value; the store ends as by a kill
    fprintf(stderr,
            "lunar kv %s: no memory is left for a value or a list; durable pairs are kept. Allow "
            "more memory (ulimit -v, the memory cgroup)\n",
            argv[1]);
    return kExitFailed;
  }
}

}  // namespace lunar::tools
