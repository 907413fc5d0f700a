// SPDX-License-Identifier: Apache-2.0
// See top.h. A call reads nothing of the keyspace: it sorts at most Prefixes::kMost counts.
#include "top.h"

#include <strings.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "rates.h"
#include "tier.h"

namespace lunar::redis {
namespace {

constexpr unsigned kCountUsual = 10;

void reply_prefix(Context* context, const PrefixUse& use, uint64_t samples) {
  char text[PrefixUse::kBytes + 4];
  size_t bytes = use.bytes;
  memcpy(text, use.text, bytes);
  if (use.cut) {
    memset(text + bytes, '.', 3);
    bytes += 3;
  }
  g_api.ReplyWithMap(context, 4);
  g_api.ReplyWithSimpleString(context, "prefix");
  g_api.ReplyWithStringBuffer(context, text, bytes);
  g_api.ReplyWithSimpleString(context, "samples");
  g_api.ReplyWithLongLong(context, use.samples);
  g_api.ReplyWithSimpleString(context, "share_percent");
  g_api.ReplyWithDouble(context, 100 * part_of(use.samples, samples));
  g_api.ReplyWithSimpleString(context, "cold_percent");
  g_api.ReplyWithDouble(context, 100 * part_of(use.cold, use.samples));
}

// The first `most` prefixes by `figure`, without those where it is 0.
template <class Figure>
void reply_first(Context* context, PrefixUse* uses, unsigned count, unsigned most, uint64_t samples,
                 Figure figure) {
  std::sort(uses, uses + count,
            [&](const PrefixUse& a, const PrefixUse& b) { return figure(a) > figure(b); });
  unsigned some = 0;
  while (some < count && some < most && figure(uses[some]) != 0) ++some;
  g_api.ReplyWithArray(context, some);
  for (unsigned i = 0; i < some; ++i) reply_prefix(context, uses[i], samples);
}

// The n of "COUNT n", or the usual count if there is no argument. 0: a syntax error.
unsigned count_asked(String** words, int count) {
  if (count == 2) return kCountUsual;
  if (count != 4) return 0;
  size_t length = 0;
  const char* word = g_api.StringPtrLen(words[2], &length);
  if (length != 5 || strncasecmp(word, "count", 5) != 0) return 0;
  const char* digits = g_api.StringPtrLen(words[3], &length);
  char* end = nullptr;
  const long n = strtol(digits, &end, 10);
  return length == 0 || end != digits + length || n < 1
             ? 0
             : static_cast<unsigned>(n < Prefixes::kMost ? n : Prefixes::kMost);
}

}  // namespace

int top_command(Context* context, String** words, int count) {
  const unsigned most = count_asked(words, count);
  if (most == 0)
    return g_api.ReplyWithError(context,
                                "ERR syntax error; LUNAR TOP [COUNT <count>], count is 1 or more");
  const bool watching = tier().gate != nullptr && tier().gate->state() == GateState::kWatching;
  static PrefixUse uses[Prefixes::kMost];
  uint64_t samples = 0;
  const unsigned known = tier().gate == nullptr ? 0 : tier().gate->prefixes().copy(uses, &samples);
  if (tier().gate != nullptr && tier().gate->state() == GateState::kStarting && samples == 0)
    return g_api.ReplyWithError(
        context, "ERR the input gate begins with the first key, and there are no samples yet");
  if (!watching && samples == 0)
    return g_api.ReplyWithError(context,
                                "ERR the input gate looks no keys up (INFO lunar: lunar_gate, "
                                "lunar_gate_reason), so there are no samples");
  g_api.ReplyWithMap(context, 3);
  g_api.ReplyWithSimpleString(context, "samples");
  g_api.ReplyWithLongLong(context, static_cast<long long>(samples));
  g_api.ReplyWithSimpleString(context, "hot");
  reply_first(context, uses, known, most, samples,
              [](const PrefixUse& use) { return use.samples; });
  g_api.ReplyWithSimpleString(context, "cold");
  reply_first(context, uses, known, most, samples, [](const PrefixUse& use) { return use.cold; });
  return kOk;
}

}  // namespace lunar::redis
