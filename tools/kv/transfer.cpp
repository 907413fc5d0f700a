// SPDX-License-Identifier: Apache-2.0
// lunar kv load and dump: streams of pairs (stream.h).
//
// A load is one change: what it set becomes durable when the stream has come to its end. Where more is loaded than the
// place has free, the engine saves meanwhile, so a load that was stopped may have left some of its pairs, each whole.
// Threading: one thread. May not be used by runtime/ (it allocates).
#include <errno.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tools/kv/kv_tool.h"
#include "tools/kv/stream.h"
#include "tools/support/clock.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

constexpr size_t kBuffer = 1 << 20;

const char kStreamHelp[] =
    "A stream is binary, with a checksum at its end, or lines of JSON: {\"key\":\"a\",\"value\":\"b\"}, and key_base64 "
    "or "
    "value_base64 for what is not UTF-8.";

struct Loaded {
  uint64_t bytes = 0;
  double seconds = 0;
};

// All pairs of the stream into the store. 0 or an exit code; the caller closes.
int load_pairs(const KvCommand& command, const std::string& from, PairReader& reader, kv::Store* store, Loaded* out) {
  std::string key, value;
  const char* kept = "what it held before is kept, and pairs of the stream may be in it";
  while (reader.next(&key, &value)) {
    out->bytes += key.size() + value.size();
    const int status = store->set(bytes_of(key), bytes_of(value));
    if (status == 0) continue;
    return command.failed(
        status,
        text_of("%s: pair %llu of %s (%zu bytes): %s%s; %s", command.place.c_str(),
                static_cast<unsigned long long>(reader.pairs()), from.c_str(), key.size() + value.size(),
                errno_text(status), status == -ENOSPC ? ": the store is full, or its index has no DRAM" : "", kept));
  }
  if (reader.error().empty()) return kKvDone;
  return command.refuse(text_of("%s %s; %s: %s", from.c_str(), reader.error().c_str(), command.place.c_str(), kept));
}

struct Dump {
  PairWriter* writer;
  bool written;
};

bool dump_pair(void* context, kv::Bytes key, kv::Bytes value) {
  auto& dump = *static_cast<Dump*>(context);
  return dump.written = dump.writer->put(view_of(key), view_of(value));
}

}  // namespace

int kv_load(int argc, char** argv) {
  KvCommand command("load", kStreamHelp);
  command.app().description(std::string("Sets all pairs of a stream. They are durable when the command ends. ") +
                            kStreamHelp);
  std::string path = "-";
  command.app().add_option("FILE", path, "the stream; standard input unless given");
  if (const auto code = command.parse(argc, argv)) return *code;
  const std::string from = path == "-" ? "standard input" : path;
  if (path == "-" && isatty(STDIN_FILENO))
    return command.refuse(
        "no stream: give a file, or one on standard input (lunar kv dump PLACE | lunar kv load PLACE)");
  FILE* file = path == "-" ? stdin : fopen(path.c_str(), "rbe");
  if (!file) return command.refuse(text_of("%s: %s", path.c_str(), strerror(errno)));
  (void)setvbuf(file, nullptr, _IOFBF, kBuffer);
  kv::Store* store = nullptr;
  Loaded loaded;
  PairReader reader(file);
  int code = command.open(kv::Take::kLoad, &store);
  if (code == 0) {
    const uint64_t start = now_ns();
    code = load_pairs(command, from, reader, store, &loaded);
    if (code == 0)
      code = command.flush_and_close(store);
    else
      store->close();
    loaded.seconds = static_cast<double>(now_ns() - start) / 1e9;
  }
  if (file != stdin) (void)fclose(file);
  if (code != 0) return code;
  if (command.json) {
    JsonWriter json;
    json.open('{').field("place", command.place).field("pairs", reader.pairs()).field("bytes", loaded.bytes);
    json.field("seconds", loaded.seconds).close('}');
    print_json(json);
  } else {
    printf("%s: %llu pairs, %s, in %.1f s\n", printable(command.place).c_str(),
           static_cast<unsigned long long>(reader.pairs()), format_size(loaded.bytes).text, loaded.seconds);
  }
  return kKvDone;
}

int kv_dump(int argc, char** argv) {
  KvCommand command("dump", kStreamHelp);
  command.app().add_flag("--salvage", command.salvage,
                         "also of a store that does not open because its log of durable sets is damaged: as it was "
                         "before the damage; check names what is left out");
  command.app().description(std::string("Writes all pairs to standard output, in no order; --json: as lines. What is "
                                        "damaged is left out, and the exit code is 3. ") +
                            kStreamHelp);
  if (const auto code = command.parse(argc, argv)) return *code;
  if (!command.json && isatty(STDOUT_FILENO))
    return command.refuse("a dump is not for a terminal; send it to a file or a pipe, or add --json");
  kv::Store* store = nullptr;
  if (const int code = command.open(kv::Take::kLook, &store); code != 0) return code;
  (void)setvbuf(stdout, nullptr, _IOFBF, kBuffer);
  PairWriter writer(stdout, command.json);
  Dump dump{&writer, true};
  const int code = visit_pairs(command, store, {dump_pair, &dump, false});
  // Stopped by an error, it stays without its end, and does not pass for a whole one.
  const bool ends = code == kKvDone || code == kKvDamaged;
  if (!dump.written || (ends && !writer.finish()))
    return command.refuse(text_of("standard output: %s", strerror(errno)), kKvFailed);
  return code;
}

}  // namespace lunar::tools
