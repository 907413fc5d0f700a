// SPDX-License-Identifier: Apache-2.0
// See flags.h.
// Threading: one thread. May not be used by runtime/ (it allocates).
#include "tools/support/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string_view>

#include "base/units.h"

namespace lunar::tools {
namespace {

// CLI11's "Could not convert: --limit = x" in the words of all other refusals.
std::string text_of_error(const CLI::ParseError& error) {
  constexpr std::string_view kConversion = "Could not convert: ", kIs = " = ";
  std::string text = error.what();
  const size_t is = text.find(kIs);
  if (text.compare(0, kConversion.size(), kConversion) != 0 || is == std::string::npos) return text;
  const std::string flag = text.substr(kConversion.size(), is - kConversion.size());
  return fmt::format("{}: '{}' is not a number", flag, text.substr(is + kIs.size()));
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
    : app_(std::make_unique<CLI::App>(description, name)) {
  if (show_defaults) app_->option_defaults()->always_capture_default();
}

Flags::~Flags() = default;

void Flags::describe(const std::string& description) { app_->description(description); }
void Flags::footer(const std::string& text) { app_->footer(text); }

Flag Flags::add(const std::string& name, std::string& value, const std::string& help) {
  return Flag(app_->add_option(name, value, help));
}
Flag Flags::add(const std::string& name, std::vector<std::string>& values,
                const std::string& help) {
  return Flag(app_->add_option(name, values, help));
}
Flag Flags::add(const std::string& name, std::vector<unsigned>& values, const std::string& help) {
  return Flag(app_->add_option(name, values, help));
}
Flag Flags::add(const std::string& name, uint64_t& value, const std::string& help) {
  return Flag(app_->add_option(name, value, help));
}
Flag Flags::add(const std::string& name, unsigned& value, const std::string& help) {
  return Flag(app_->add_option(name, value, help));
}
Flag Flags::add(const std::string& name, double& value, const std::string& help) {
  return Flag(app_->add_option(name, value, help));
}
Flag Flags::add(const std::string& name, bool& value, const std::string& help) {
  return Flag(app_->add_flag(name, value, help));
}

void Flags::parse(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    throw HelpAsked(app_->help());
  } catch (const CLI::ParseError& error) { throw FlagsError(text_of_error(error)); }
}

int Flags::refuse(const FlagsError& error) const {
  if (dynamic_cast<const HelpAsked*>(&error) != nullptr) return fmt::print("{}", error.what()), 0;
  fmt::print(stderr, "{0}: {1}; `{0} --help` shows how it is used\n", name(), error.what());
  return 2;
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
