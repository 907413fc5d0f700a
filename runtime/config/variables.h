// SPDX-License-Identifier: Apache-2.0
// LUNAR_* variables that are not options: the libraries, the tests and the benches read them
// directly. Each name that any part of the project reads is here or in options.def (tests/layout
// checks this), so that no reader of options takes it for a misspelling.
// Threading: constant data.
#pragma once
#include <cstddef>

namespace lunar {

struct OtherVariable {
  const char* name;
  const char* value_name;
  const char* help;  // one sentence; nullptr: for developers, in no help text
  const char* page;  // where it is documented
};

size_t other_variable_count();
const OtherVariable& other_variable(size_t index);
bool is_other_variable(const char* name);

}  // namespace lunar
