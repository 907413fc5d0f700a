// SPDX-License-Identifier: Apache-2.0
// lunar doctor: a table of what the host offers, then the lacks, each with the command that fixes
// it; or the same as one JSON object. Exit code 0: Lunar can run here. Changes nothing on the host.
#include <unistd.h>

#include <cstdio>

#include "tools/doctor/doctor_checks.h"
#include "tools/subcommands.h"
#include "tools/support/json_writer.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

JsonWriter as_json(const std::vector<Finding>& findings, bool can_run) {
  JsonWriter json;
  json.open('{')
      .field("lunar", std::string_view(LUNAR_VERSION))
      .field("can_run", can_run)
      .key("checks")
      .open('[');
  for (const Finding& finding : findings) {
    json.open('{')
        .field("name", finding.name)
        .field("state", std::string_view(health_name(finding.health)))
        .field("value", finding.value);
    if (!finding.lack.empty()) json.field("lack", finding.lack);
    if (!finding.remedy.empty()) json.field("remedy", finding.remedy);
    json.close('}');
  }
  json.close(']').close('}');
  return json;
}

std::string as_table(const std::vector<Finding>& findings, bool can_run) {
  constexpr size_t kValueColumn = 28;
  std::string out, lacks;
  for (const Finding& finding : findings) {
    const char* mark = finding.health == Health::kInfo ? "" : health_name(finding.health);
    out += text_of("%-8s%-20s", mark, finding.name.c_str());
    append_wrapped(&out, finding.value, kValueColumn, kValueColumn, 110);
    if (finding.lack.empty()) continue;
    lacks += text_of("%s: %s: ", finding.health == Health::kFail ? "needed" : "better",
                     finding.name.c_str());
    append_wrapped(&lacks, finding.lack, 0, 2, 110);
    if (!finding.remedy.empty()) lacks += "  -> " + finding.remedy + "\n";
  }
  if (!lacks.empty()) out += "\n" + lacks;
  out += can_run ? "\nLunar can run here.\n"
                 : "\nLunar cannot run here until what is needed is fixed.\n";
  return out;
}

}  // namespace

int cmd_doctor(int argc, char** argv) {
  VerbCommand command(
      "lunar", "doctor",
      "Shows what this host offers to Lunar and what is missing, with the exact command that fixes "
      "each lack. JSON: {\"can_run\":..., \"checks\":[{\"name\",\"state\",\"value\",\"lack\","
      "\"remedy\"},...]}\n\n"
      "Exit code: 0 when Lunar can run here, 1 when it cannot.");
  if (const auto code = command.parse(argc, argv)) return *code;
  Options options;
  ErrorText why;
  std::vector<Finding> findings;
  if (options_load(&options, environ, &why) < 0) {
    findings.push_back(Finding::fail("options", "not readable", why.text,
                                     "fix the line or variable that is named"));
    options_defaults(&options);
  }
  for (Finding& finding : examine_host(options)) findings.push_back(std::move(finding));
  bool can_run = true;
  for (const Finding& finding : findings) can_run &= finding.health != Health::kFail;
  if (command.json)
    print_json(as_json(findings, can_run));
  else
    fputs(as_table(findings, can_run).c_str(), stdout);
  return can_run ? kExitDone : kExitNo;
}

}  // namespace lunar::tools
