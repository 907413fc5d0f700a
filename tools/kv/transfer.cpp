// SPDX-License-Identifier: Apache-2.0
// lunar kv load and dump: streams of pairs (stream.h).
//
// A load is one change: its pairs become durable when the stream has ended. If the stream has more
// data than the place has free space, the engine saves in between. A load that is stopped then may
// leave some of its pairs, each complete, so it does not exit like a refusal. On a blank place it
// makes the store once the stream has begun.
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
    "A stream is binary, with a checksum at its end, or lines of JSON: "
    "{\"key\":\"a\",\"value\":\"b\"}, with key_base64 or value_base64 for bytes that are not "
    "UTF-8.";

struct Loaded {
  bool made = false;  // the place was blank, and is a store now
  uint64_t bytes = 0;
  double seconds = 0;
};

struct LoadedPair {
  std::string key, value;
  bool there = false;
};

const char* may_hold(const Loaded& loaded) {
  return loaded.made ? "it was blank and is a store now, and pairs of the stream may be in it"
                     : "its earlier pairs are kept, and pairs of the stream may be in it";
}

int refuse_stream(const KvCommand& command, const std::string& from, const PairReader& reader,
                  const Loaded& loaded) {
  const bool began = reader.pairs() != 0;
  return command.refuse(
      text_of("%s %s; %s: %s", from.c_str(), reader.error().c_str(), command.place.c_str(),
              began ? may_hold(loaded) : "nothing was changed"),
      began ? kExitFailed : kExitRefused);
}

// Sets all pairs of the stream; `pair` is the first one, if there is one. 0 or an exit code. The
// caller closes the store.
int load_pairs(const KvCommand& command, const std::string& from, LoadedPair& pair,
               PairReader& reader, kv::Store* store, Loaded* out) {
  for (; pair.there; pair.there = reader.next(&pair.key, &pair.value)) {
    out->bytes += pair.key.size() + pair.value.size();
    const int status = store->set(bytes_of(pair.key), bytes_of(pair.value));
    if (status == 0) continue;
    const std::string text = text_of(
        "%s: pair %llu of %s (%zu bytes): %s%s; %s", command.place.c_str(),
        static_cast<unsigned long long>(reader.pairs()), from.c_str(),
        pair.key.size() + pair.value.size(), errno_text(status),
        status == -ENOSPC ? ": the store is full (lunar kv grow), or its index has no DRAM" : "",
        may_hold(*out));
    return reader.pairs() > 1 || out->made ? command.stopped(status, text)
                                           : command.failed(status, text);
  }
  return reader.error().empty() ? kExitDone : refuse_stream(command, from, reader, *out);
}

// A full store has made earlier pairs of the stream durable on its own.
int make_durable(const KvCommand& command, kv::Store* store, const Loaded& loaded) {
  const int status = store->flush();
  if (status == 0) return kExitDone;
  return command.stopped(status == -EBADMSG ? -EIO : status,
                         text_of("%s: cannot be made durable: %s; %s", command.place.c_str(),
                                 errno_text(status), may_hold(loaded)));
}

// Opens the store, and reads the first pair. On a blank place it makes a store, unless the stream
// is wrong from the start. 0 or an exit code.
int open_to_load(const KvCommand& command, const std::string& from, LoadedPair* pair,
                 PairReader& reader, Loaded* loaded, kv::Store** out) {
  ErrorText why;
  int code = 0;
  int status = command.open(kv::OpenMode::kLoad, out, &why, &code);
  const bool blank = code == 0 && status == -ENOENT && command.is_there();
  if (status == 0 || blank) pair->there = reader.next(&pair->key, &pair->value);
  if (blank && !reader.error().empty()) return refuse_stream(command, from, reader, *loaded);
  if (blank) status = command.open(kv::OpenMode::kLoadOrMake, out, &why, &code);
  loaded->made = blank && status == 0;
  return status == 0 || code != 0 ? code : command.failed_to_open(status, why);
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
  command.flags().describe(
      std::string("Sets all pairs of a stream. They are durable when the command ends. On a blank "
                  "place (an empty file, a blank device), it makes the store. ") +
      kStreamHelp);
  std::string path = "-";
  command.flags().add("FILE", path, "the stream; default: standard input");
  if (const auto code = command.parse(argc, argv)) return *code;
  const std::string from = path == "-" ? "standard input" : path;
  if (path == "-" && isatty(STDIN_FILENO))
    return command.refuse(
        "no stream: give a file, or one on standard input (lunar kv dump PLACE | lunar kv load "
        "PLACE)");
  FILE* file = path == "-" ? stdin : fopen(path.c_str(), "rbe");
  if (!file) return command.refuse(text_of("%s: %s", path.c_str(), strerror(errno)));
  (void)setvbuf(file, nullptr, _IOFBF, kBuffer);
  kv::Store* store = nullptr;
  Loaded loaded;
  LoadedPair pair;
  PairReader reader(file);
  int code = open_to_load(command, from, &pair, reader, &loaded, &store);
  if (code == 0) {
    const uint64_t start = now_ns();
    code = load_pairs(command, from, pair, reader, store, &loaded);
    if (code == 0) code = make_durable(command, store, loaded);
    store->close();
    loaded.seconds = static_cast<double>(now_ns() - start) / 1e9;
  }
  if (file != stdin) (void)fclose(file);
  if (code != 0) return code;
  if (command.json) {
    JsonWriter json;
    json.open('{')
        .field("place", command.place)
        .field("pairs", reader.pairs())
        .field("bytes", loaded.bytes);
    json.field("seconds", loaded.seconds).close('}');
    print_json(json);
  } else {
    printf("%s: %s, %s, in %.1f s\n", printable(command.place).c_str(),
           counted(reader.pairs(), "pair").c_str(), format_size(loaded.bytes).text, loaded.seconds);
  }
  return kExitDone;
}

int kv_dump(int argc, char** argv) {
  KvCommand command("dump", kStreamHelp);
  command.flags().add(
      "--salvage", command.salvage,
      "also dump a store that does not open. With a damaged saved state: the pairs found in its "
      "sound parts and in the records (deleted pairs may come back, with a line that says so). "
      "With a damaged log of durable sets: the store as it was before the damage. check names the "
      "pairs that are left out or doubtful");
  command.flags().describe(
      std::string("Writes all pairs to standard output, in no order; with --json, as lines. It "
                  "leaves out damaged pairs, with exit code 3. ") +
      kStreamHelp);
  if (const auto code = command.parse(argc, argv)) return *code;
  if (!command.json && isatty(STDOUT_FILENO))
    return command.refuse(
        "a dump is not for a terminal; send it to a file or a pipe, or add --json");
  kv::Store* store = nullptr;
  if (const int code = command.open(kv::OpenMode::kReadOnly, &store); code != 0) return code;
  (void)setvbuf(stdout, nullptr, _IOFBF, kBuffer);
  PairWriter writer(stdout, command.json);
  Dump dump{&writer, true};
  const int code = visit_pairs(command, store, {dump_pair, &dump, false});
  // A dump that was stopped by an error gets no end, so load sees that it is truncated.
  const bool ends = code == kExitDone || code == kExitDamaged;
  if (!dump.written || (ends && !writer.finish()))
    return command.refuse(text_of("standard output: %s", strerror(errno)), kExitFailed);
  return code;
}

}  // namespace lunar::tools
