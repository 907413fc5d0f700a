// SPDX-License-Identifier: Apache-2.0
// lunar lun check: the format's whole-structure check, its findings a line each, and a result that
// scripts can read from the exit code. Without --repair it writes nothing: the device is open for
// reading.
// Threading: one thread. May not be used by runtime/ (it allocates).
#include <cstdio>

#include "tools/lun/lun_tool.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

void keep_line(void* argument, const char* text) {
  static_cast<std::vector<std::string>*>(argument)->push_back(text);
}

struct CheckResult {
  const char* word;
  int code;
};

// An extent that two LUNs own is data lost, and so is what the check calls fatal; all else can be
// repaired.
CheckResult check_result(const CheckReport& report, const std::vector<std::string>& findings,
                         bool repaired_at_open, bool repair) {
  for (const std::string& finding : findings) {
    if (finding.compare(0, 5, "fatal") == 0) return {"damaged", kLunDamaged};
  }
  if (report.extents_double > 0) return {"damaged", kLunDamaged};
  if (report.problems > report.repaired)
    return {repair ? "damaged" : "needs repair", repair ? kLunDamaged : kLunRepaired};
  if (report.problems > 0 || report.repaired > 0 || repaired_at_open)
    return {"mended", kLunRepaired};
  return {"clean", kLunDone};
}

void show(const LunLine& line, const std::string& device, const CheckReport& report,
          const PhysicalLunInfo& info, const std::vector<std::string>& findings,
          const CheckResult& result) {
  if (line.json) {
    JsonWriter json;
    json.open('{')
        .field("device", device)
        .field("uuid", uuid_text(info.uuid))
        .field("verdict", std::string_view(result.word));
    json.field("problems", report.problems)
        .field("repaired", report.repaired)
        .field("mended_at_open", info.repaired);
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
    printf("%s: a damaged copy of the metadata was found at open and written again\n",
           device.c_str());
  if (report.extents_lost + report.extents_double + report.extents_missing > 0)
    printf("%s: %s lost (of no LUN), %llu owned twice, %llu missing\n", device.c_str(),
           counted(report.extents_lost, "extent").c_str(),
           static_cast<unsigned long long>(report.extents_double),
           static_cast<unsigned long long>(report.extents_missing));
  printf("%s: %s; %s used, %llu free, %s\n", device.c_str(), result.word,
         counted(report.extents_used, "extent").c_str(),
         static_cast<unsigned long long>(report.extents_free), counted(info.luns, "LUN").c_str());
  if (result.code == kLunRepaired && report.problems > report.repaired)
    printf("%s: to fix it: lunar lun check %s --repair\n", device.c_str(),
           shell_word(device).c_str());
}

}  // namespace

int lun_check(const LunLine& line) {
  LunName name;
  if (const int code = take_lun(line, line.words[0], false, &name); code != 0) return code;
  int code = 0;
  if (line.repair &&
      !lun_consent(line, text_of("damaged metadata of %s is written again", name.device.c_str()),
                   &code))
    return code;
  PhysicalLun* physical = nullptr;
  if (code = open_physical(line, name.device, &physical,
                           line.repair ? Format::kRepair : Format::kCheck);
      code != 0)
    return code;
  std::vector<std::string> findings;
  CheckReport report;
  report.line = keep_line;
  report.argument = &findings;
  PhysicalLunInfo info;
  int error = physical->check(line.repair, &report);
  if (error == 0 && physical->info(&info) < 0)
    info.luns = 0;  // damaged beyond its copies, as the findings say
  physical->close();
  if (error < 0) {
    ErrorText why;
    (void)why.set(error, "%s could not be checked: %s", name.device.c_str(), errno_text(error));
    code = lun_failed(line, error, why);
    return code == kLunDamaged ? code : kLunFailed;
  }
  const CheckResult result = check_result(report, findings, info.repaired, line.repair);
  show(line, name.device, report, info, findings, result);
  return result.code;
}

}  // namespace lunar::tools
