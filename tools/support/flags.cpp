// SPDX-License-Identifier: Apache-2.0
// See flags.h.
#include "tools/support/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string_view>

#include "base/units.h"
#include "tools/support/exit_code.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

bool is_flag(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

// CLI11's refusals in the words of all others.
std::string text_of_error(const CLI::App& app, const CLI::ParseError& error) {
  constexpr std::string_view kConversion = "Could not convert: ", kIs = " = ";
  std::vector<std::string> extras = app.remaining();
  const auto words = std::find(extras.begin(), extras.end(), "--");  // no flags from here on
  const auto flag = std::find_if(extras.begin(), words, is_flag);
  if (flag != words) {
    std::vector<std::string> known;
    for (const CLI::Option* one : app.get_options())
      for (const std::string& name : one->get_lnames()) known.push_back("--" + name);
    return unknown_text(app.get_name(), "flag", flag->substr(0, flag->find('=')), known);
  }
  if (words != extras.end()) extras.erase(words);
  if (!extras.empty()) return fmt::format("'{}' is one word too many", extras.front());
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (const size_t end = text.find(" was given"); end != std::string::npos)
      return fmt::format("--{} takes no value", text.substr(0, end));
    if (const size_t end = text.find(':'); end != std::string::npos)
      return text.substr(0, end) + " needs a value";
  }
  const size_t is = text.find(kIs);
  if (text.compare(0, kConversion.size(), kConversion) != 0 || is == std::string::npos) return text;
  const std::string name = text.substr(kConversion.size(), is - kConversion.size());
  return fmt::format("{}: '{}' is not a number", name, text.substr(is + kIs.size()));
}

}  // namespace

uint64_t size_option(const std::string& flag, const std::string& text) {
  uint64_t bytes = 0;
  if (parse_size(text.c_str(), &bytes) != 0)
    throw FlagsError(flag, "'" + text + "' is not a size (as 512m, 2g)");
  return bytes;
}

Flag Flag::required() const { return Flag(option_->required()); }
Flag Flag::range(int least, int most) const {
  return Flag(option_->check(CLI::Range(least, most)));
}
Flag Flag::range(int64_t least, int64_t most) const {
  return Flag(option_->check(CLI::Range(least, most)));
}
Flag Flag::range(double least, double most) const {
  return Flag(option_->check(CLI::Range(least, most)));
}
Flag Flag::list() const { return Flag(option_->delimiter(',')); }
Flag Flag::one_of(const std::vector<std::string>& known) const {
  return Flag(option_->check(CLI::IsMember(known)));
}
Flag Flag::excludes(const Flag& other) const { return Flag(option_->excludes(other.option_)); }
Flag Flag::checked(const std::function<std::string(const std::string&)>& why_not,
                   const std::string& type) const {
  return Flag(option_->check(
      CLI::Validator([why_not](std::string& value) { return why_not(value); }, type)));
}
bool Flag::given() const { return option_->count() != 0; }

Flags::Flags(const std::string& description, const std::string& name, bool show_defaults)
    : app_(std::make_unique<CLI::App>(description + "\n", name)) {
  if (show_defaults) app_->option_defaults()->always_capture_default();
}

Flags::~Flags() = default;

void Flags::describe(const std::string& description) { app_->description(description + "\n"); }
void Flags::footer(const std::string& text) { app_->footer(text); }

Flag Flags::add(const std::string& name, std::string& value, const std::string& help) {
  return Flag(app_->add_option(name, value, help)->take_last());
}
Flag Flags::add(const std::string& name, std::vector<std::string>& values,
                const std::string& help) {
  return Flag(app_->add_option(name, values, help));
}
Flag Flags::add(const std::string& name, std::vector<unsigned>& values, const std::string& help) {
  return Flag(app_->add_option(name, values, help));
}
Flag Flags::add(const std::string& name, uint64_t& value, const std::string& help) {
  return Flag(app_->add_option(name, value, help)->take_last());
}
Flag Flags::add(const std::string& name, unsigned& value, const std::string& help) {
  return Flag(app_->add_option(name, value, help)->take_last());
}
Flag Flags::add(const std::string& name, double& value, const std::string& help) {
  return Flag(app_->add_option(name, value, help)->take_last());
}
Flag Flags::add(const std::string& name, bool& value, const std::string& help) {
  return Flag(app_->add_flag(name, value, help)->disable_flag_override());
}

void Flags::parse(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    throw HelpAsked(wrapped_help(app_->help()));
  } catch (const CLI::ParseError& error) { throw FlagsError(text_of_error(*app_, error)); }
}

int Flags::refuse(const FlagsError& error) const {
  if (dynamic_cast<const HelpAsked*>(&error) != nullptr) {
    fmt::print("{}", error.what());
    return kExitDone;
  }
  const std::string text = printable(error.what());
  fmt::print(stderr, "{0}: {1}", name(), text);
  if (text.find("did you mean") == text.npos && text.find("--help") == text.npos)
    fmt::print(stderr, "; `{} --help` shows how it is used", name());
  fmt::print(stderr, "\n");
  return kExitRefused;
}

std::string Flags::name() const { return app_->get_name(); }

std::vector<std::pair<std::string, std::string>> Flags::values() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const CLI::Option* one : app_->get_options()) {
    if (one->get_lnames().empty() || one->get_lnames()[0] == "help") continue;
    out.emplace_back(one->get_lnames()[0], one->count() > 0
                                               ? fmt::format("{}", fmt::join(one->results(), ","))
                                               : one->get_default_str());
  }
  return out;
}

}  // namespace lunar::tools
