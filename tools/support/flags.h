// SPDX-License-Identifier: Apache-2.0
// The flags and words of a command line. CLI11 reads them; only flags.cpp includes it, as its
// headers take a compiler many seconds. A wrong line gets one line that says what, where and what
// to do, and exit code 2.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lunar::tools {

// The line is wrong.
class FlagsError : public std::runtime_error {
 public:
  explicit FlagsError(const std::string& text) : std::runtime_error(text) {}
  FlagsError(const std::string& flag, const std::string& why) : FlagsError(flag + ": " + why) {}
};
// --help was given: what() is the help.
class HelpAsked : public FlagsError {
 public:
  using FlagsError::FlagsError;
};

// A size, as parse_size takes it (base/units.h). Throws FlagsError.
uint64_t size_option(const std::string& flag, const std::string& text);

// A flag ("--name") or word ("NAME"), of a Flags that outlives it.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}
  Flag required() const;
  Flag range(int least, int most) const;
  Flag range(int64_t least, int64_t most) const;
  Flag range(double least, double most) const;
  Flag list() const;  // several values, comma-separated
  Flag one_of(const std::vector<std::string>& known) const;
  Flag excludes(const Flag& other) const;
  // why_not: of a value, "" where it is right. type: its name in the help.
  Flag checked(const std::function<std::string(const std::string&)>& why_not,
               const std::string& type) const;
  bool given() const;

 private:
  CLI::Option* option_;
};

class Flags {
 public:
  // name: of the command, as `lunar kv get`. show_defaults: the help has the values at add().
  Flags(const std::string& description, const std::string& name, bool show_defaults = false);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  void describe(const std::string& description);
  void footer(const std::string& text);  // below the help

  // `value` keeps what it is unless the line says otherwise, and outlives the parse.
  Flag add(const std::string& name, std::string& value, const std::string& help = "");
  Flag add(const std::string& name, std::vector<std::string>& values, const std::string& help = "");
  Flag add(const std::string& name, std::vector<unsigned>& values, const std::string& help = "");
  Flag add(const std::string& name, uint64_t& value, const std::string& help = "");
  Flag add(const std::string& name, unsigned& value, const std::string& help = "");
  Flag add(const std::string& name, double& value, const std::string& help = "");
  // no value follows it
  Flag add(const std::string& name, bool& value, const std::string& help = "");

  void parse(int argc, char** argv);  // throws FlagsError
  // Prints it. The exit code: 0 where help was asked for, else 2.
  int refuse(const FlagsError& error) const;

  std::string name() const;
  // Each flag but --help, with its value on the line, or its default.
  std::vector<std::pair<std::string, std::string>> values() const;

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace lunar::tools
