// SPDX-License-Identifier: Apache-2.0
// Replies of the twin test as trees, and their text for comparison. See redis_twin.h.
#include <algorithm>
#include <stdexcept>

#include "redis_twin.h"

namespace e2e {
namespace {

std::string line_at(const std::string& bytes, size_t* at) {
  const size_t end = bytes.find("\r\n", *at);
  if (end == std::string::npos) throw std::runtime_error("a reply ends in mid-line");
  std::string line = bytes.substr(*at, end - *at);
  *at = end + 2;
  return line;
}

// Elements, or groups of `width` of them, in order of their text.
std::string sorted(const std::vector<Tree>& items, size_t width, Order inside = Order::kAsIs) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < items.size(); i += width) {
    std::string part;
    for (size_t j = i; j < std::min(items.size(), i + width); ++j)
      part += canonical(items[j], inside);
    parts.push_back(std::move(part));
  }
  std::sort(parts.begin(), parts.end());
  std::string out;
  for (auto& part : parts) out += part;
  return out;
}

}  // namespace

Tree parse_reply(const std::string& bytes, size_t* at) {
  if (*at >= bytes.size()) throw std::runtime_error("a reply is missing");
  Tree tree;
  tree.type = bytes[(*at)++];
  const std::string line = line_at(bytes, at);
  switch (tree.type) {
    case '+':
    case '-':
    case ':':
    case ',':
    case '#':
    case '(':
      tree.text = line;
      break;
    case '_':
      tree.null = true;
      break;
    case '$':
    case '=': {
      const int64_t size = strtoll(line.c_str(), nullptr, 10);
      tree.null = size < 0;
      if (tree.null) break;
      if (*at + static_cast<size_t>(size) + 2 > bytes.size())
        throw std::runtime_error("a reply ends in mid-string");
      tree.text = bytes.substr(*at, static_cast<size_t>(size));
      *at += static_cast<size_t>(size) + 2;
      break;
    }
    case '*':
    case '~':
    case '>':
    case '%': {
      int64_t count = strtoll(line.c_str(), nullptr, 10);
      tree.null = count < 0;
      if (tree.type == '%') count *= 2;
      for (; count > 0; --count) tree.items.push_back(parse_reply(bytes, at));
      break;
    }
    default:
      throw std::runtime_error(fmt::format("a reply begins with '{}{}'", tree.type, shown(line)));
  }
  return tree;
}

std::string canonical(const Tree& reply, Order order) {
  const bool aggregate =
      reply.type == '*' || reply.type == '~' || reply.type == '%' || reply.type == '>';
  if (reply.null) return fmt::format("{}null ", reply.type);
  if (!aggregate && order == Order::kLength)
    return fmt::format("{}of {} bytes ", reply.type, reply.text.size());
  if (!aggregate) return fmt::format("{}{}:{} ", reply.type, reply.text.size(), reply.text);
  std::string out = fmt::format("{}{}[", reply.type, reply.items.size());
  const Order scanned = order == Order::kScan ? Order::kUnordered : Order::kPairs;
  // RESP3's pairs are arrays of two
  const bool pairs_inside = !reply.items.empty() && reply.items[0].type == '*';
  if (order == Order::kDeep)
    out += sorted(reply.items, reply.type == '%' ? 2 : 1, order);
  else if (reply.type == '%')
    out += sorted(reply.items, 2);
  else if (reply.type == '~' || order == Order::kUnordered)
    out += sorted(reply.items, 1);
  else if (order == Order::kPairs)
    out += sorted(reply.items, pairs_inside ? 1 : 2);
  else if ((order == Order::kScan || order == Order::kScanPairs) && reply.items.size() == 2)
    out += canonical(reply.items[0], Order::kAsIs) + canonical(reply.items[1], scanned);
  else
    for (auto& item : reply.items) out += canonical(item, Order::kAsIs);
  return out + "]";
}

std::string shown(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, 160))
    if (c >= ' ' && c <= '~')
      out += c;
    else
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return text.size() > 160 ? fmt::format("{}... ({} bytes)", out, text.size()) : out;
}

std::string shown(const Words& words) {
  std::string out;
  for (size_t i = 0; i < words.size() && i < 24; ++i) out += (i == 0 ? "" : " ") + shown(words[i]);
  return words.size() > 24 ? fmt::format("{} ... ({} words)", out, words.size()) : out;
}

}  // namespace e2e
