// SPDX-License-Identifier: Apache-2.0
// A table for people. Each column is as wide as its longest cell; numbers are right-aligned.
// Threading: one thread per object.
#pragma once
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace lunar::tools {

class Table {
 public:
  // A head that begins with '>' belongs to a column of numbers.
  explicit Table(std::vector<std::string> heads) : heads_(std::move(heads)) {
    for (std::string& head : heads_) {
      right_.push_back(head[0] == '>');
      if (right_.back()) head.erase(0, 1);
    }
  }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const {
    std::vector<size_t> width;
    for (const std::string& head : heads_) width.push_back(head.size());
    for (const auto& row : rows_) {
      for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
    }
    std::string out = line(heads_, width);
    for (const auto& row : rows_) out += line(row, width);
    return out;
  }

 private:
  std::string line(const std::vector<std::string>& row, const std::vector<size_t>& width) const {
    std::string out;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(width[i] - row[i].size(), ' ');
      out += (i ? "  " : "") + (right_[i] ? blanks + row[i] : row[i] + blanks);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  }
  std::vector<std::string> heads_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace lunar::tools
