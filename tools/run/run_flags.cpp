// SPDX-License-Identifier: Apache-2.0
// See run_flags.h. Flags are --name VALUE or --name=VALUE; for yes/no options --name, --name=no or
// --no-name. The command begins with the first word that is not a flag, or after `--`.
#include "tools/run/run_flags.h"

#include <errno.h>
#include <unistd.h>

#include <cctype>
#include <cstring>

#include "config/variables.h"
#include "tools/support/text.h"

namespace lunar::tools {

std::string flag_name(const OptionInfo& info) {
  std::string name = "--";
  for (const char* p = info.name; *p; ++p) name += *p == '_' ? '-' : *p;
  return name;
}

std::string variable_name(const OptionInfo& info) {
  std::string name = "LUNAR_";
  for (const char* p = info.name; *p; ++p)
    name += static_cast<char>(toupper(static_cast<unsigned char>(*p)));
  return name;
}

namespace {

// Index of the option that `--NAME` sets; *negated for --no-NAME of a yes/no option. -1: none.
int find_flag(const std::string& name, bool* negated) {
  *negated = false;
  // Flags have dashes and lower case; option_find() also accepts the spellings of variables.
  for (size_t i = 0; i < option_count(); ++i) {
    const OptionInfo& info = option_info(i);
    std::string flag = flag_name(info);
    if (name == flag) return static_cast<int>(i);
    if (info.type == OptionType::kBool && name == "--no-" + flag.substr(2)) {
      *negated = true;
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::string unknown_flag(const std::string& name) {
  std::vector<std::string> known = {"--help"};
  for (size_t i = 0; i < option_count(); ++i) {
    if (option_info(i).flag && !option_info(i).test_only)
      known.push_back(flag_name(option_info(i)));
  }
  return unknown_text("lunar run", "flag", name, known);
}

bool has_blank(const std::string& text) { return text.find_first_of(" \t\n") != std::string::npos; }

// Several --lun are a stripe. They become one value, with blanks between the parts, so a path with
// a blank must be the only one.
int add_flag(const RunFlag& flag, RunLine* out, std::string* why) {
  RunFlag* before = nullptr;
  for (RunFlag& other : out->flags) {
    if (other.option == flag.option && strcmp(option_info(flag.option).name, "lun") == 0)
      before = &other;
  }
  const bool lun = before || strcmp(option_info(flag.option).name, "lun") == 0;
  const bool path = lun && access(flag.value.c_str(), F_OK) == 0;
  const std::string& odd =
      before && has_blank(before->value) && access(before->value.c_str(), F_OK) == 0 ? before->value
                                                                                     : flag.value;
  if (lun && has_blank(odd) && (before || !path)) {
    *why = text_of(
        "%s: '%s' has a blank in it, which divides LUNs; give each its own --lun, and a path with "
        "a blank by a link without one (ln -s)",
        flag.spelled.c_str(), odd.c_str());
    return -EINVAL;
  }
  if (!before) return out->flags.push_back(flag), 0;
  if (flag.value.empty() || before->value.empty())
    return *why = text_of("%s: an empty word among several LUNs; give a path or URI",
                          flag.spelled.c_str()),
           -EINVAL;
  before->value += " " + flag.value;
  return 0;
}

}  // namespace

int parse_run_line(int argc, char** argv, RunLine* out, std::string* why) {
  int at = 1;
  for (; at < argc; ++at) {
    std::string word = argv[at];
    if (word == "--") {
      ++at;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;
    if (word == "--help" || word == "-h") {
      out->help = true;
      return 0;
    }
    size_t equals = word.find('=');
    std::string name = word.substr(0, equals);
    bool negated = false;
    int index = find_flag(name, &negated);
    if (index < 0) return *why = unknown_flag(name), -EINVAL;
    const OptionInfo& info = option_info(static_cast<size_t>(index));
    if (!info.flag) {
      *why = text_of("%s is not a flag; set the variable %s instead", name.c_str(),
                     variable_name(info).c_str());
      return -EINVAL;
    }
    RunFlag flag{static_cast<size_t>(index), name, ""};
    if (info.type == OptionType::kBool) {
      if (negated && equals != std::string::npos)
        return *why = text_of("%s takes no value", name.c_str()), -EINVAL;
      flag.value = negated ? "no" : equals != std::string::npos ? word.substr(equals + 1) : "yes";
    } else if (equals != std::string::npos) {
      flag.value = word.substr(equals + 1);
    } else if (at + 1 < argc && strcmp(argv[at + 1], "--") != 0) {
      flag.value = argv[++at];
    } else {
      *why = text_of("%s needs a value: %s %s", name.c_str(), name.c_str(), info.value_name);
      return -EINVAL;
    }
    if (add_flag(flag, out, why) < 0) return -EINVAL;
  }
  for (; at < argc; ++at) out->command.push_back(argv[at]);
  if (out->command.empty()) {
    *why = "no command given; usage: lunar run [OPTION]... -- COMMAND [ARGUMENT]...";
    return -EINVAL;
  }
  return 0;
}

// ---- generated texts ----------------------------------------------------------------------------

namespace {

std::string default_note(const OptionInfo& info) {
  if (!*info.default_text) return "";
  return text_of(" [%s]", info.default_text);
}

void append_entry(std::string* out, const std::string& head, const std::string& text) {
  constexpr size_t kIndent = 34;
  *out += "  " + head;
  size_t column = 2 + head.size();
  if (column + 2 > kIndent) {
    *out += '\n';
    column = 0;
  }
  out->append(kIndent - column, ' ');
  append_wrapped(out, text, kIndent, kIndent);
}

std::string flag_head(const OptionInfo& info) {
  std::string head = flag_name(info);
  // People switch off an option that is on by default, so its --no- form is shown.
  if (info.type == OptionType::kBool)
    return strcmp(info.default_text, "yes") == 0 ? head + ", --no-" + head.substr(2) : head;
  return head + " " + info.value_name;
}

}  // namespace

std::string run_help() {
  std::string out = wrapped_help(
      "Usage: lunar run [OPTION]... [--] COMMAND [ARGUMENT]...\n\n"
      "Runs COMMAND with its heap extended onto a LUN: hot pages stay in DRAM, the others live on "
      "flash. COMMAND replaces this process: its pid, terminal, signals and exit code are its "
      "own.\n\n"
      "Options:\n");
  for (size_t i = 0; i < option_count(); ++i) {
    const OptionInfo& info = option_info(i);
    if (!info.flag || info.test_only) continue;
    append_entry(&out, flag_head(info), info.help + default_note(info));
  }
  append_entry(&out, "-h, --help", "this text");
  out += wrapped_help(
      "\nSizes take k, m, g or t (powers of 1024). Each option is also a variable (--dram: "
      "LUNAR_DRAM) and a key of the config file (dram = 1g); a flag wins over the variable, the "
      "variable over the file. `lunar help options` lists all.\n\n"
      "Exit codes: COMMAND's own; 125 if Lunar cannot start or tier it, 126 if it is not "
      "executable, 127 if it is not found.\n\n"
      "Examples:\n"
      "  lunar run --dram 1g -- redis-server --port 6379\n"
      "  lunar run --dram 256m --lun /mnt/flash --stats -- sort big.txt\n"
      "  lunar run --lun /dev/nvme1n1#cache --lun /dev/nvme2n1#cache -- COMMAND  (a stripe of two "
      "LUNs)\n");
  return out;
}

std::string options_text() {
  std::string out = wrapped_help(
      "Each option of Lunar is a variable, a key of the config file and of lunar_config.options, "
      "and in most cases a flag of `lunar run`. Precedence: default < config file < variable < "
      "flag.\n"
      "Config file: $LUNAR_CONFIG, else ~/.config/lunar.conf, else /etc/lunar.conf; lines `name = "
      "value`, comments with #.\n\n");
  for (size_t i = 0; i < option_count(); ++i) {
    const OptionInfo& info = option_info(i);
    if (info.test_only) continue;
    const std::string names =
        std::string("key ") + info.name + (info.flag ? ", flag " + flag_name(info) : ", no flag");
    append_entry(&out, variable_name(info),
                 text_of("%s: %s%s (%s)", info.value_name, info.help, default_note(info).c_str(),
                         names.c_str()));
  }
  out += "\nVariables of the libraries, which have neither key nor flag:\n";
  for (size_t i = 0; i < other_variable_count(); ++i) {
    const OtherVariable& variable = other_variable(i);
    if (variable.help)
      append_entry(&out, variable.name,
                   text_of("%s: %s; %s", variable.value_name, variable.help, variable.page));
  }
  append_entry(&out, "CFLSH_BLK_...", "variables of IBM's block library; man 3 cblk_open");
  return out;
}

std::string options_markdown() {
  std::string out =
      "| flag of `lunar run` | variable | config key | value | default | meaning |\n"
      "|---|---|---|---|---|---|\n";
  for (size_t i = 0; i < option_count(); ++i) {
    const OptionInfo& info = option_info(i);
    if (info.test_only) continue;
    std::string values, help;
    for (const char* p = info.value_name; *p; ++p)
      values += *p == '|' ? std::string("\\|") : std::string(1, *p);
    for (const char* p = info.help; *p; ++p)
      help += *p == '|' ? std::string("\\|") : std::string(1, *p);
    std::string flag = info.flag ? "`" + flag_name(info) + "`" : "";
    std::string fallback = *info.default_text ? "`" + std::string(info.default_text) + "`" : "";
    out +=
        text_of("| %s | `%s` | `%s` | %s | %s | %s |\n", flag.c_str(), variable_name(info).c_str(),
                info.name, values.c_str(), fallback.c_str(), help.c_str());
  }
  return out;
}

}  // namespace lunar::tools
