// SPDX-License-Identifier: Apache-2.0
// lunar kv info and check. Neither writes.
#include "kv/inspect.h"

#include <errno.h>

#include <cstdio>

#include "tools/kv/kv_tool.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

struct StateName {
  kv::SegmentState state;
  const char *name, *text;
};
// The states of segments in a store without changes.
constexpr StateName kStates[] = {
    {kv::SegmentState::kSealed, "records", "of records"},
    {kv::SegmentState::kState, "saved_state", "of the saved state"},
    {kv::SegmentState::kFree, "free", "free"},
};

void info_json(const KvCommand& command, const kv::StoreInfo& info) {
  JsonWriter json;
  json.open('{')
      .field("place", command.place)
      .field("version", info.version)
      .field("uuid", uuid_text(info.uuid));
  json.field("features", info.features).field("place_bytes", info.place_bytes);
  json.field("keys", info.keys)
      .field("pair_bytes", info.pair_bytes)
      .field("live_bytes", info.live_bytes);
  json.field("pieces", info.pieces);
  json.field("segment_bytes", info.segment_bytes).key("segments").open('{');
  for (const StateName& state : kStates)
    json.field(state.name, info.segments[static_cast<unsigned>(state.state)]);
  json.close('}').field("state_sequence", info.sequence).field("state_bytes", info.state_bytes);
  json.field("shards", info.shards)
      .field("index_bytes", info.index_bytes)
      .field("dram_bytes", info.dram_bytes);
  json.close('}');
  print_json(json);
}

void info_text(const KvCommand& command, const kv::StoreInfo& info) {
  print_row("place", command.place);
  print_row("format", text_of("version %u", info.version));
  if (info.features)
    print_row("features", text_of("0x%llx", static_cast<unsigned long long>(info.features)));
  print_row("uuid", uuid_text(info.uuid));
  print_row("size", text_of("%s (%llu bytes)", size_text(info.place_bytes).c_str(),
                            static_cast<unsigned long long>(info.place_bytes)));
  print_row("keys", text_of("%llu", static_cast<unsigned long long>(info.keys)));
  print_row("keys and values", text_of("%s (%llu bytes)", size_text(info.pair_bytes).c_str(),
                                       static_cast<unsigned long long>(info.pair_bytes)));
  print_row("segments of", size_text(info.segment_bytes));
  for (const StateName& state : kStates)
    print_row(
        "",
        text_of("%llu %s",
                static_cast<unsigned long long>(info.segments[static_cast<unsigned>(state.state)]),
                state.text));
  const uint64_t records =
      info.segments[static_cast<unsigned>(kv::SegmentState::kSealed)] * info.segment_bytes;
  print_row("records", text_of("%s live of %s; `lunar kv compact` can give back part of the rest",
                               size_text(info.live_bytes).c_str(), size_text(records).c_str()));
  print_row("saved state",
            text_of("number %llu, %s", static_cast<unsigned long long>(info.sequence),
                    size_text(info.state_bytes).c_str()));
  print_row("index", text_of("%s of DRAM in %u shards (%s with frames and tables)",
                             size_text(info.index_bytes).c_str(), info.shards,
                             size_text(info.dram_bytes).c_str()));
}

// ---- check

struct Findings {
  const KvCommand* command;
  JsonWriter* json;  // nullptr: lines
};

void show_damage(void* context, const kv::Damage& damage) {
  const auto& to = *static_cast<const Findings*>(context);
  const std::string_view key(static_cast<const char*>(damage.key.data),
                             damage.key_readable ? damage.key.size : 0);
  if (to.json) {
    to.json->open('{')
        .field("what", std::string_view(damage.what))
        .field("fault", std::string_view(damage.fault));
    if (damage.key_readable) json_bytes(*to.json, "key", key);
    if (damage.key_bytes) to.json->field("key_bytes", damage.key_bytes);
    if (damage.in_segment) to.json->field("segment", damage.segment);
    to.json->field("offset", damage.offset)
        .field("bytes", damage.bytes)
        .field("pair_lost", damage.pair_lost);
    to.json->close('}');
    return;
  }
  std::string line = text_of("%s: %s", printable(to.command->place).c_str(), damage.what);
  if (damage.key_readable)
    line += " of key '" + escaped(key) + "'";
  else if (damage.pair_lost)
    line += ", its key is also damaged";
  if (damage.key_readable && key.size() < damage.key_bytes) line += "...";
  if (damage.in_segment)
    line += text_of(", segment %llu", static_cast<unsigned long long>(damage.segment));
  line += text_of(", at %llu", static_cast<unsigned long long>(damage.offset));
  if (damage.bytes) line += text_of(", %llu bytes", static_cast<unsigned long long>(damage.bytes));
  printf("%s: %s\n", line.c_str(), damage.fault);
}

// A store with damaged roots or superblocks cannot be opened. The line of open() is the only
// finding.
int check_unopened(const KvCommand& command, int status, const ErrorText& why) {
  if (command.json && status == -EBADMSG) {
    JsonWriter json;
    json.open('{').field("place", command.place).field("verdict", std::string_view("damaged"));
    json.key("damages").open('[').open('{').field("what", std::string_view("store"));
    json.field("fault", std::string_view(why.text))
        .field("pair_lost", true)
        .close('}')
        .close(']')
        .close('}');
    print_json(json);
    return kExitDamaged;
  }
  return command.failed_to_open(status, why);
}

int check_open(const KvCommand& command, kv::Store* store) {
  JsonWriter json;
  kv::CheckReport report;
  Findings findings{&command, command.json ? &json : nullptr};
  json.open('{').field("place", command.place).key("damages").open('[');
  kv::Sweep sweep;
  sweep.context = &findings;
  sweep.on_damage = show_damage;
  const int status = store->sweep(sweep, &report);
  store->close();
  if (status < 0)
    return command.failed(
        status, text_of("%s: cannot be checked: %s", command.place.c_str(), errno_text(status)));
  const char* verdict = report.damages == 0                        ? "clean"
                        : report.pairs_lost + report.doubtful == 0 ? "damaged without loss"
                                                                   : "damaged";
  if (command.json) {
    json.close(']')
        .field("verdict", std::string_view(verdict))
        .field("pairs_lost", report.pairs_lost);
    json.field("pairs_doubtful", report.doubtful);
    json.field("records", report.records).field("large_pairs", report.large_pairs);
    json.field("dead_records", report.dead_records)
        .field("read_bytes", report.read_bytes)
        .close('}');
    print_json(json);
  } else {
    // Records without a key matter only if there is damage.
    const std::string doubtful =
        report.doubtful == 0 ? "" : ", " + counted(report.doubtful, "pair") + " doubtful";
    const std::string dead =
        report.damages == 0 ? "" : "; " + counted(report.dead_records, "record") + " without a key";
    printf("%s: %s; %s sound (%llu of them large), %llu lost%s%s; %s read\n",
           printable(command.place).c_str(), verdict,
           counted(report.records + report.large_pairs, "pair").c_str(),
           static_cast<unsigned long long>(report.large_pairs),
           static_cast<unsigned long long>(report.pairs_lost), doubtful.c_str(), dead.c_str(),
           size_text(report.read_bytes).c_str());
    if (report.pairs_lost)
      printf("%s: `lunar kv set` or `load` can give the lost keys that are named new values\n",
             printable(command.place).c_str());
  }
  return report.pairs_lost + report.doubtful ? kExitDamaged : report.damages ? kExitNo : kExitDone;
}

}  // namespace

int kv_info(int argc, char** argv) {
  KvCommand command(
      "info", "Shows what a store is, what it holds and how much space it takes. Writes nothing.");
  if (const auto code = command.parse(argc, argv)) return *code;
  kv::Store* store = nullptr;
  if (const int code = command.open(kv::OpenMode::kReadOnly, &store); code != 0) return code;
  kv::StoreInfo info;
  store->info(&info);
  store->close();
  command.json ? info_json(command, info) : info_text(command, info);
  return kExitDone;
}

int kv_check(int argc, char** argv) {
  KvCommand command(
      "check",
      "Checks all of a store against its checksums, and names every damaged record: its key if "
      "that can be read, its segment, and its offset on the device. Writes nothing.\n\n"
      "Exit code: 0 clean, 1 damaged but no pair is lost, 2 refused, 3 pairs are lost or doubtful, "
      "4 the check could not run.");
  if (const auto code = command.parse(argc, argv)) return *code;
  command.salvage = true;
  kv::Store* store = nullptr;
  ErrorText why;
  int code = 0;
  const int status = command.open(kv::OpenMode::kReadOnly, &store, &why, &code);
  if (code != 0) return code;
  return status < 0 ? check_unopened(command, status, why) : check_open(command, store);
}

}  // namespace lunar::tools
