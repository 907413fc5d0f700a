// SPDX-License-Identifier: Apache-2.0
// See memory_report.h. No measuring here.
// Threading: plain data. May not be used by runtime/ (it allocates).
#include "tools/bench/memory_report.h"

namespace lunar::tools {

MemoryFlags::MemoryFlags(CLI::App& app, MemoryDefaults defaults)
    : defaults_(std::move(defaults)), allowance_(defaults_.allowance) {
  app.add_option(
      "--dram", dram_,
      fmt::format("DRAM budget of each backend (default {}; {} with --quick)", defaults_.dram, defaults_.quick_dram));
  app.add_option("--data", data_, fmt::format("{} (default: 4 times --dram)", defaults_.data_is));
  app.add_option("--allowance", allowance_,
                 fmt::format("memory limit of each backend above --dram: {} (default {})", defaults_.allowance_is,
                             defaults_.allowance));
}

void MemoryFlags::settle(MemoryOptions* options) const {
  const std::string dram = !dram_.empty() ? dram_ : options->quick ? defaults_.quick_dram : defaults_.dram;
  options->dram_bytes = size_option("--dram", dram);
  options->data_bytes = data_.empty() ? 4 * options->dram_bytes : size_option("--data", data_);
  options->allowance_bytes = size_option("--allowance", allowance_);
  if (options->dram_bytes < kDramMin) throw CLI::ValidationError("--dram", "at least 16m");
  if (options->data_bytes < options->dram_bytes) throw CLI::ValidationError("--data", "at least --dram");
}

void open_options(JsonWriter& json, const MemoryOptions& options) {
  json.key("options").open('{').field("dram_bytes", options.dram_bytes).field("data_bytes", options.data_bytes);
  json.field("allowance_bytes", options.allowance_bytes);
}

void close_options(JsonWriter& json, const MemoryOptions& options) {
  json.field("lun", options.lun).field("lunar_options", options.options);
  json.field("seed", options.seed).field("quick", options.quick).close('}');
}

std::string row_note(int page_cluster, const Ratios& ratios, const std::string& stem,
                     std::initializer_list<std::pair<const char*, const char*>> quantities) {
  std::string note;
  if (page_cluster >= 0) note = fmt::format("page-cluster {}", page_cluster);
  for (const auto& [quantity, label] : quantities) {
    const std::string text = ratio_text(ratios, stem + quantity);
    if (!text.empty()) note += fmt::format("{}{} {}", note.empty() ? "" : ", ", text, label);
  }
  return note;
}

}  // namespace lunar::tools
