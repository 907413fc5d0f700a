// SPDX-License-Identifier: Apache-2.0
// The flags and words of a command line. CLI11 reads them; only flags.cpp includes it, as its
// headers take a compiler many seconds. A wrong line is refused in one line that says what, where
// and what to do, with kExitRefused.
// Threading: one thread.
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

// The command line is wrong.
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

// A flag ("--name") or word ("NAME"). Its Flags must outlive it.
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
  // why_not(value): "" if the value is right, else what is wrong with it. type: the value's name in
  // the help.
  Flag checked(const std::function<std::string(const std::string&)>& why_not,
               const std::string& type) const;
  bool given() const;

 private:
  CLI::Option* option_;
};

class Flags {
 public:
  // name: "lunar kv get". show_defaults: the help shows the values that the variables have at
  // add().
  Flags(const std::string& description, const std::string& name, bool show_defaults = false);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  void describe(const std::string& description);
  void footer(const std::string& text);  // below the help

  // parse() sets `value` if the line has the flag. `value` must outlive the Flags. name: "--json",
  // or "PLACE" for a word.
  Flag add(const std::string& name, std::string& value, const std::string& help = "");
  Flag add(const std::string& name, std::vector<std::string>& values, const std::string& help = "");
  Flag add(const std::string& name, std::vector<unsigned>& values, const std::string& help = "");
  Flag add(const std::string& name, uint64_t& value, const std::string& help = "");
  Flag add(const std::string& name, unsigned& value, const std::string& help = "");
  Flag add(const std::string& name, double& value, const std::string& help = "");
  // A flag without a value.
  Flag add(const std::string& name, bool& value, const std::string& help = "");

  void parse(int argc, char** argv);  // throws FlagsError
  // Prints the help that was asked for, or what is wrong. Returns the exit code.
  int refuse(const FlagsError& error) const;

  std::string name() const;
  // Each flag except --help, with its value on the line, or its default.
  std::vector<std::pair<std::string, std::string>> values() const;

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace lunar::tools
