// SPDX-License-Identifier: Apache-2.0
// lunar lun check: the format's whole-structure check. It prints one line per finding, and the exit
// code is the result. Without --repair the device is opened for reading only.
#include <cstdio>

#include "tools/lun/lun_tool.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

void add_finding(void* argument, const char* text) {
  static_cast<std::vector<std::string>*>(argument)->push_back(text);
}

struct CheckResult {
  const char* word;
  int code;
};

// An extent that two LUNs own means lost data, as does a finding that begins with "fatal". The rest
// can be repaired.
CheckResult check_result(const CheckReport& report, const std::vector<std::string>& findings,
                         bool repaired_at_open, bool repair) {
  for (const std::string& finding : findings) {
    if (finding.compare(0, 5, "fatal") == 0) return {"damaged", kExitDamaged};
  }
  if (report.extents_double > 0) return {"damaged", kExitDamaged};
  if (report.problems > report.repaired)
    return {repair ? "damaged" : "needs repair", repair ? kExitDamaged : kExitNo};
  if (report.problems > 0 || report.repaired > 0 || repaired_at_open) return {"repaired", kExitNo};
  return {"clean", kExitDone};
}

void show(const LunCommand& command, const std::string& device, const CheckReport& report,
          const PhysicalLunInfo& info, const std::vector<std::string>& findings,
          const CheckResult& result) {
  if (command.json) {
    JsonWriter json;
    json.open('{')
        .field("device", device)
        .field("uuid", uuid_text(info.uuid))
        .field("verdict", std::string_view(result.word));
    json.field("problems", report.problems)
        .field("repaired", report.repaired)
        .field("repaired_at_open", info.repaired);
    json.field("extents_free", report.extents_free).field("extents_used", report.extents_used);
    json.field("extents_lost", report.extents_lost)
        .field("extents_double", report.extents_double)
        .field("extents_missing", report.extents_missing);
    json.key("findings").open('[');
    for (const std::string& finding : findings) json.value(finding);
    json.close(']').close('}');
    print_json(json);
    return;
  }
  for (const std::string& finding : findings) printf("%s: %s\n", device.c_str(), finding.c_str());
  if (info.repaired)
    printf("%s: a damaged copy of the metadata was repaired at open\n", device.c_str());
  if (report.extents_lost + report.extents_double + report.extents_missing > 0)
    printf("%s: %s lost (of no LUN), %llu owned twice, %llu missing\n", device.c_str(),
           counted(report.extents_lost, "extent").c_str(),
           static_cast<unsigned long long>(report.extents_double),
           static_cast<unsigned long long>(report.extents_missing));
  printf("%s: %s; %s used, %llu free, %s\n", device.c_str(), result.word,
         counted(report.extents_used, "extent").c_str(),
         static_cast<unsigned long long>(report.extents_free), counted(info.luns, "LUN").c_str());
  if (result.code == kExitNo && report.problems > report.repaired)
    printf("%s: to fix it: lunar lun check %s --repair\n", device.c_str(),
           shell_word(device).c_str());
}

}  // namespace

int lun_check(int argc, char** argv) {
  LunCommand command(
      "check",
      "Checks all copies of the metadata and the owner of each extent, and writes nothing.\n\n"
      "Exit code: 0 clean, 1 needs repair or was repaired, 2 refused, 3 damaged, 4 the check could "
      "not run.");
  std::string uri;
  bool repair = false;
  command.flags().add("URI", uri, "the device").required();
  command.flags().add("--repair", repair,
                      "rewrite damaged copies, and free the extents of dead owners; it asks, or "
                      "needs --yes");
  command.add_yes();
  if (const auto code = command.parse(argc, argv)) return *code;
  LunName name;
  if (const int code = parse_lun_name(command, uri, false, &name); code != 0) return code;
  int code = 0;
  if (repair &&
      !lun_consent(command, text_of("damaged metadata of %s is rewritten", name.device.c_str()),
                   &code))
    return code;
  PhysicalLun* physical = nullptr;
  if (code =
          open_physical(command, name.device, &physical, repair ? Format::kRepair : Format::kCheck);
      code != 0)
    return code;
  std::vector<std::string> findings;
  CheckReport report;
  report.line = add_finding;
  report.argument = &findings;
  PhysicalLunInfo info;
  const int error = physical->check(repair, &report);
  if (error == 0 && physical->info(&info) < 0)
    info.luns = 0;  // all copies are damaged, as the findings say
  physical->close();
  if (error < 0) {
    ErrorText why;
    (void)why.set(error, "%s could not be checked: %s", name.device.c_str(), errno_text(error));
    code = command.failed(error, why);
    return code == kExitDamaged ? code : kExitFailed;
  }
  const CheckResult result = check_result(report, findings, info.repaired, repair);
  show(command, name.device, report, info, findings, result);
  return result.code;
}

}  // namespace lunar::tools
