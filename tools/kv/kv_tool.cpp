// SPDX-License-Identifier: Apache-2.0
// See kv_tool.h.
#include "tools/kv/kv_tool.h"

#include <errno.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "kv/inspect.h"
#include "lun/compose.h"
#include "tools/support/text.h"

namespace lunar::tools {

KvCommand::KvCommand(const char* verb, const char* description)
    : VerbCommand("lunar kv", verb, description) {
  flags()
      .add("PLACE", place,
           "a file, a block device, or a URI of one, as `lunar lun --help` lists them")
      .required();
  flags().add("--dram", dram_,
              "DRAM budget, a hard limit (default: LUNAR_KV_DRAM, else a quarter of the available "
              "memory)");
}

std::optional<int> KvCommand::parse(int argc, char** argv) {
  if (const auto code = VerbCommand::parse(argc, argv)) return code;
  if (place.empty()) return refuse("the place is an empty word; give a path or SCHEME:PATH");
  return std::nullopt;
}

bool KvCommand::size(const char* flag, const std::string& text, uint64_t* out, int* code) const {
  *out = 0;
  if (text.empty()) return true;
  if (parse_size(text.c_str(), out) == 0 && *out != 0 && *out < UINT64_MAX / 4) return true;
  *code =
      refuse(text_of("%s: '%s' is not a size; give one such as 512m or 4g", flag, text.c_str()));
  return false;
}

int KvCommand::dram(uint64_t* bytes) const {
  int code = 0;
  if (!size("--dram", dram_, bytes, &code)) return code;
  ErrorText why;
  if (*bytes == 0 && kv::dram_of_stores("LUNAR_KV_DRAM", bytes, &why) < 0) return refuse(why.text);
  return 0;
}

int KvCommand::open(kv::OpenMode mode, kv::Store** out, uint64_t log_bytes_most) const {
  ErrorText why;
  int code = 0;
  const int status = open(mode, out, &why, &code, log_bytes_most);
  return status == 0 || code != 0 ? code : failed_to_open(status, why);
}

int KvCommand::open(kv::OpenMode mode, kv::Store** out, ErrorText* why, int* code,
                    uint64_t log_bytes_most) const {
  kv::StoreOptions options;
  if ((*code = dram(&options.dram_bytes)) != 0) return -EINVAL;
  kv::StorePath store_path;
  store_path.path = place.c_str();
  store_path.mode = mode;
  store_path.caller = "key/value store";
  store_path.advice = ", not a key/value store; is the name right?";
  if (mode == kv::OpenMode::kLoadOrMake) {
    uint64_t bytes = 0;
    if (const int wrong = kv::size_variable("LUNAR_KV_SIZE", "LUNAR_KV_SIZE", &bytes, why);
        wrong < 0)
      return wrong;
    if (bytes != 0) store_path.bytes_if_empty = round_up(bytes, kv::media::kBlockBytes);
  }
  options.log_bytes = 0;
  options.log_bytes_most = log_bytes_most;
  options.read_only = mode == kv::OpenMode::kReadOnly;
  options.salvage = salvage;
  return kv::persistent_store_open(store_path, &options, out, why);
}

bool KvCommand::is_there() const {
  return scheme_length(place.c_str()) != 0 || access(place.c_str(), F_OK) == 0;
}

int KvCommand::failed_to_open(int status, const ErrorText& why) const {
  std::string text = why.text[0] ? why.text : errno_text(status);
  if (status == -ENOMEM) return refuse((dram_.empty() ? "LUNAR_KV_DRAM: " : "--dram: ") + text);
  std::error_code no_link;
  const std::string target = std::filesystem::read_symlink(place, no_link).string();
  if (status == -ENOENT && !no_link && !is_there())
    text +=
        text_of("; it is a symbolic link to %s, which does not exist", shell_word(target).c_str());
  else if (status == -ENOENT)
    text += text_of("; `lunar kv create %s` makes one", shell_word(place).c_str());
  else if (status == -EBADMSG && text.find("--salvage") == std::string::npos)
    text += "; an earlier dump or a backup may have its pairs";
  return failed(status, text);
}

int KvCommand::stopped(int status, const std::string& text) const {
  const int code = exit_code_of(status);
  return refuse(text, code == kExitRefused ? kExitFailed : code);
}

int KvCommand::flush_and_close(kv::Store* store) const {
  const int status = store->flush();
  store->close();
  if (status == 0) return 0;
  return failed(status == -EBADMSG ? -EIO : status,
                text_of("%s: cannot be made durable: %s; the store is as it was before",
                        place.c_str(), errno_text(status)));
}

int64_t read_value(kv::Store* store, std::string_view key, std::string* out) {
  const int64_t length = store->exists(bytes_of(key));
  if (length < 0) return length;
  out->resize(static_cast<size_t>(length));
  return store->get(bytes_of(key), out->data(), out->size(), 0);
}

int visit_pairs(const KvCommand& command, kv::Store* store, const Pairs& pairs) {
  kv::Sweep sweep;
  sweep.context = pairs.context;
  sweep.on_damage = [](void*, const kv::Damage&) {};
  sweep.on_pair = pairs.on_pair;
  sweep.keys_only = pairs.keys_only;
  kv::CheckReport report;
  const int status = store->sweep(sweep, &report);
  store->close();
  if (status < 0 && status != -ECANCELED)
    return command.failed(status,
                          text_of("%s: stopped: %s", command.place.c_str(), errno_text(status)));
  const std::string check =
      text_of("; `lunar kv check %s` names ", shell_word(command.place).c_str());
  int code = kExitDone;
  if (report.doubtful != 0)
    code = command.refuse(
        text_of("%s: %s may be older than the last value, or have been deleted, because the saved "
                "state is damaged%sthem",
                command.place.c_str(), counted(report.doubtful, "pair").c_str(), check.c_str()),
        kExitDamaged);
  if (report.pairs_lost == 0) return code;
  return command.refuse(text_of("%s: left out %s that cannot be read%sthem", command.place.c_str(),
                                counted(report.pairs_lost, "pair").c_str(), check.c_str()),
                        kExitDamaged);
}

}  // namespace lunar::tools
