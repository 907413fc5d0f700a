// SPDX-License-Identifier: Apache-2.0
// lunar kv create, grow and compact: changes to a store's place and its space there.
#include <errno.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "kv/inspect.h"
#include "tools/kv/kv_tool.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

constexpr uint64_t kOutsideLog = kv::media::kHeadBytes + kv::media::kTailBytes;

uint64_t free_segments(const kv::StoreInfo& info) {
  return info.segments[static_cast<unsigned>(kv::SegmentState::kFree)];
}

uint64_t all_segments(const kv::StoreInfo& info) {
  uint64_t sum = 0;
  for (const uint64_t count : info.segments) sum += count;
  return sum;
}

void show_created(const KvCommand& command, const kv::StoreInfo& info) {
  const uint64_t segments = all_segments(info);
  if (command.json) {
    JsonWriter json;
    json.open('{').field("place", command.place).field("place_bytes", info.place_bytes);
    json.field("segment_bytes", info.segment_bytes)
        .field("segments", segments)
        .field("shards", info.shards)
        .close('}');
    print_json(json);
  } else {
    printf("%s: a store of %s, %llu segments of %s\n", printable(command.place).c_str(),
           size_text(info.place_bytes).c_str(), static_cast<unsigned long long>(segments),
           size_text(info.segment_bytes).c_str());
  }
}

}  // namespace

int kv_create(int argc, char** argv) {
  KvCommand command(
      "create", "Makes an empty key/value store. If the path does not exist, it becomes a file.");
  std::string size, segment;
  bool force = false;
  kv::StoreOptions options;
  command.flags().add(
      "--size", size,
      "size of a new or empty file (default: 1g); on any other place, the most to use");
  command.flags().add("--segment", segment,
                      "64k, 128k, 256k, 512k or 1m; default: chosen by size and DRAM");
  command.flags()
      .add("--keys", options.expected_keys, "expected number of keys, a hint for the index")
      .range(int64_t{1}, int64_t{1} << 48);
  command.flags()
      .add("--shards", options.shards, "number of writers that can be busy at one time")
      .range(1, 256);
  command.flags().add("--force", force, "overwrite what the place holds");
  if (const auto code = command.parse(argc, argv)) return *code;
  uint64_t bytes = 0;
  ErrorText why;
  int code = 0;
  if (!command.size("--size", size, &bytes, &code)) return code;
  if (!command.size("--segment", segment, &options.segment_bytes, &code)) return code;
  const bool power = (options.segment_bytes & (options.segment_bytes - 1)) == 0;
  if (options.segment_bytes != 0 && (!power || options.segment_bytes < kv::Log::kSegmentBytesMin ||
                                     options.segment_bytes > kv::Log::kSegmentBytesMax))
    return command.refuse(
        text_of("--segment: %s is not a size for segments; give 64k, 128k, 256k, 512k or 1m",
                segment.c_str()));
  if ((code = command.dram(&options.dram_bytes)) != 0) return code;
  // A hint must not use up the DRAM, now or at a later open with as large an index.
  options.expected_keys = std::min(options.expected_keys, options.dram_bytes / 32);
  if (bytes == 0 && kv::size_variable("LUNAR_KV_SIZE", "LUNAR_KV_SIZE", &bytes, &why) < 0)
    return command.refuse(why.text);
  if (bytes != 0 && bytes < kv::kPlaceBytesLeast)
    return command.refuse(
        text_of("--size: %s is too small for a store; give 2m at least", size_text(bytes).c_str()));
  kv::StorePath place;
  place.path = command.place.c_str();
  place.mode = force ? kv::OpenMode::kReplaceAll : kv::OpenMode::kMake;
  if (bytes != 0) place.bytes_if_empty = round_up(bytes, kv::media::kBlockBytes);
  place.caller = "key/value store";
  place.advice = "; give another place, or --force if that may go";
  options.log_bytes = bytes ? round_down(bytes, kv::media::kBlockBytes) - kOutsideLog : 0;
  kv::Store* store = nullptr;
  const int status = kv::persistent_store_open(place, &options, &store, &why);
  if (status == -ENOENT) return command.failed(status, why);  // no such directory
  if (status < 0) return command.failed_to_open(status, why);
  kv::StoreInfo info;
  store->info(&info);
  store->close();
  show_created(command, info);
  return kExitDone;
}

// Makes a regular file larger. 0 or an exit code.
static int enlarge_file(const KvCommand& command, uint64_t bytes) {
  std::error_code error;
  const auto now = std::filesystem::file_size(command.place, error);
  if (error || !std::filesystem::is_regular_file(command.place))
    return command.refuse(
        "--size is for a store on a file; make a device larger with its own tools");
  if (bytes <= now)
    return command.refuse(
        text_of("--size: %s is %s large already", command.place.c_str(), size_text(now).c_str()));
  std::filesystem::resize_file(command.place, bytes, error);
  return error ? command.failed(-error.value(),
                                text_of("%s: cannot be made %s large: %s", command.place.c_str(),
                                        size_text(bytes).c_str(), error.message().c_str()))
               : 0;
}

int kv_grow(int argc, char** argv) {
  KvCommand command(
      "grow",
      "Makes a store take the rest of a device or file that became larger (lvextend, truncate). "
      "With --size, it makes the file larger first. No pair is lost if it is interrupted.");
  std::string size;
  command.flags().add("--size", size, "size of the file, such as 20g");
  if (const auto code = command.parse(argc, argv)) return *code;
  uint64_t bytes = 0;
  int code = 0;
  if (!command.size("--size", size, &bytes, &code)) return code;
  kv::Store* store = nullptr;
  if (bytes != 0) {  // a file that cannot be opened as a store keeps its size
    if (code = command.open(kv::OpenMode::kLoad, &store); code != 0) return code;
    store->close();
    if (code = enlarge_file(command, round_down(bytes, kv::media::kBlockBytes)); code != 0)
      return code;
  }
  if (code = command.open(kv::OpenMode::kLoad, &store, UINT64_MAX); code != 0) return code;
  const uint64_t before = store->bytes_allocated();
  const int status = store->grow_place();
  kv::StoreInfo info;
  store->info(&info);
  store->close();
  if (status == -ENODATA)
    return command.refuse(text_of(
        "%s: the store has all of its place; make the place larger first%s", command.place.c_str(),
        bytes == 0 ? " (--size for a file)" : " by at least a segment"));
  if (status == -ENOMEM)
    return command.refuse(text_of("%s: a store of that size needs more DRAM; give a larger --dram",
                                  command.place.c_str()));
  if (status < 0)
    return command.stopped(status, text_of("%s: stopped: %s; no pair is lost",
                                           command.place.c_str(), errno_text(status)));
  if (command.json) {
    JsonWriter json;
    json.open('{').field("place", command.place).field("place_bytes", info.place_bytes);
    json.field("segment_bytes", info.segment_bytes)
        .field("segments", all_segments(info))
        .close('}');
    print_json(json);
  } else {
    printf("%s: %s for pairs, before %s\n", printable(command.place).c_str(),
           size_text(all_segments(info) * info.segment_bytes).c_str(), size_text(before).c_str());
  }
  return kExitDone;
}

int kv_compact(int argc, char** argv) {
  KvCommand command(
      "compact",
      "Moves live pairs out of segments in which many were replaced or deleted, as long as that "
      "frees segments, and makes the result durable. A file keeps its size.");
  if (const auto code = command.parse(argc, argv)) return *code;
  kv::Store* store = nullptr;
  if (const int code = command.open(kv::OpenMode::kLoad, &store); code != 0) return code;
  kv::StoreInfo before, after;
  store->info(&before);
  const int status = store->compact();
  store->info(&after);
  const uint64_t moved = store->cleaned_bytes();
  store->close();
  if (status < 0)
    return command.stopped(status, text_of("%s: stopped: %s; no pair is lost",
                                           command.place.c_str(), errno_text(status)));
  const uint64_t had = free_segments(before), has = free_segments(after),
                 damaged = after.segments[static_cast<unsigned>(kv::SegmentState::kDamaged)];
  const uint64_t gained = has > had ? has - had : 0;
  if (command.json) {
    JsonWriter json;
    json.open('{').field("place", command.place).field("segment_bytes", after.segment_bytes);
    json.field("segments", all_segments(after)).field("free_before", had).field("free", has);
    json.field("gained_bytes", gained * after.segment_bytes).field("moved_bytes", moved);
    json.field("damaged_segments", damaged).close('}');
    print_json(json);
  } else {
    printf("%s: %s gained: %llu of %llu segments of %s are free (were %llu); %s moved\n",
           printable(command.place).c_str(), size_text(gained * after.segment_bytes).c_str(),
           static_cast<unsigned long long>(has),
           static_cast<unsigned long long>(all_segments(after)),
           size_text(after.segment_bytes).c_str(), static_cast<unsigned long long>(had),
           size_text(moved).c_str());
  }
  if (damaged == 0) return kExitDone;
  return command.refuse(text_of("%s: damage in %s was left alone; `lunar kv check %s` names it",
                                command.place.c_str(), counted(damaged, "segment").c_str(),
                                shell_word(command.place).c_str()),
                        kExitDamaged);
}

}  // namespace lunar::tools
