// SPDX-License-Identifier: Apache-2.0
// Bounded formatting: parses a directive into a Spec, renders its argument into digits or text,
// then pads it.
// Threading: no state. May be used on the fault path, in signal handlers and in forked children: it
// calls nothing.
#include "base/format.h"

#include <algorithm>
#include <cstdint>

namespace lunar {
namespace {

struct Sink {
  char* out;
  size_t room;          // bytes that may still be written, the NUL not counted
  bool escape = false;  // escapes unprintable bytes of arguments
  size_t length = 0;
  void put(char c) {
    if (length < room) out[length++] = c;
  }
};

struct Spec {
  bool zero = false;
  bool left = false;
  int width = 0;
  int precision = -1;
  char length = 0;  // 0, 'l' (l, ll, z, j and t are all 64 bits or long)
  char conversion = 0;
};

// The greatest width or precision; keeps the arithmetic from overflowing.
constexpr int kMaxWidth = 4096;

const char* parse_number(const char* p, va_list* args, int* out) {
  if (*p == '*') {
    int given = va_arg(*args, int);
    *out = std::min(given, kMaxWidth);
    return p + 1;
  }
  int value = 0;
  while (*p >= '0' && *p <= '9') {
    if (value < kMaxWidth) value = value * 10 + (*p - '0');
    ++p;
  }
  *out = value;
  return p;
}

// `p` points behind the '%'. Returns the end of the directive, or nullptr when the directive is
// unknown.
const char* parse_spec(const char* p, va_list* args, Spec* spec) {
  for (;; ++p) {
    if (*p == '0')
      spec->zero = true;
    else if (*p == '-')
      spec->left = true;
    else
      break;
  }
  p = parse_number(p, args, &spec->width);
  if (spec->width < 0) {
    spec->left = true;
    spec->width = spec->width < -kMaxWidth ? kMaxWidth : -spec->width;
  }
  if (*p == '.') p = parse_number(p + 1, args, &spec->precision);
  for (; *p == 'l' || *p == 'z' || *p == 'j' || *p == 't'; ++p)
    spec->length = (spec->length || *p != 'l') ? 'j' : 'l';
  switch (*p) {
    case 's':
    case 'c':
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'p':
      spec->conversion = *p;
      return p + 1;
    default:
      return nullptr;
  }
}

void pad(Sink* sink, const Spec& spec, size_t used, char with) {
  for (size_t n = used; n < static_cast<size_t>(spec.width); ++n) sink->put(with);
}

// Length of the printable character at the beginning of `text`; 0: there is none.
size_t printable_length(const char* text, size_t length) {
  const auto* byte = reinterpret_cast<const unsigned char*>(text);
  const unsigned lead = byte[0];
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7f;
  const size_t n = lead >= 0xf0 && lead <= 0xf4  ? 4
                   : lead >= 0xe0 && lead < 0xf0 ? 3
                   : lead >= 0xc2 && lead < 0xe0 ? 2
                                                 : 0;
  if (n == 0 || n > length) return 0;
  uint32_t code = lead & (0x7fu >> n);
  for (size_t i = 1; i < n; ++i) {
    if ((byte[i] & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte[i] & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool character = code >= kLeast[n] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  // C1; line ends, directions
  const bool control =
      code < 0xa0 || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return character && !control ? n : 0;
}

void put_escaped(Sink* sink, const char* text, size_t length) {
  for (size_t i = 0; i < length;) {
    size_t n = printable_length(text + i, length - i);
    if (n == 0) {
      const auto byte = static_cast<unsigned char>(text[i++]);
      const char hex[] = {'\\', 'x', "0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
      for (char c : hex) sink->put(c);
    }
    for (; n > 0; --n) sink->put(text[i++]);
  }
}

void put_text(Sink* sink, const Spec& spec, const char* text) {
  if (!text) text = "(null)";
  size_t length = 0;
  while ((spec.precision < 0 || length < static_cast<size_t>(spec.precision)) && text[length])
    ++length;
  if (!spec.left) pad(sink, spec, length, ' ');
  if (sink->escape)
    put_escaped(sink, text, length);
  else
    for (size_t i = 0; i < length; ++i) sink->put(text[i]);
  if (spec.left) pad(sink, spec, length, ' ');
}

void put_number(Sink* sink, const Spec& spec, uint64_t value, unsigned base, const char* prefix) {
  char digits[24];
  size_t count = 0;
  do {
    digits[count++] = "0123456789abcdef"[value % base];
    value /= base;
  } while (value);
  size_t prefix_length = 0;
  while (prefix[prefix_length]) ++prefix_length;
  bool zeros = spec.zero && !spec.left;
  if (!spec.left && !zeros) pad(sink, spec, count + prefix_length, ' ');
  for (size_t i = 0; i < prefix_length; ++i) sink->put(prefix[i]);
  if (zeros) pad(sink, spec, count + prefix_length, '0');
  for (size_t i = count; i > 0; --i) sink->put(digits[i - 1]);
  if (spec.left) pad(sink, spec, count + prefix_length, ' ');
}

void put_directive(Sink* sink, const Spec& spec, va_list* args) {
  static_assert(sizeof(long) == sizeof(size_t) && sizeof(size_t) == sizeof(void*),
                "l, z, t and p are one size");
  switch (spec.conversion) {
    case 's':
      return put_text(sink, spec, va_arg(*args, const char*));
    case 'c': {
      char text[2] = {static_cast<char>(va_arg(*args, int)), 0};
      return put_text(sink, spec, text);
    }
    case 'd':
    case 'i': {
      int64_t value = spec.length == 'j' ? va_arg(*args, long long)
                      : spec.length      ? va_arg(*args, long)
                                         : va_arg(*args, int);
      uint64_t magnitude =
          value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
      return put_number(sink, spec, magnitude, 10, value < 0 ? "-" : "");
    }
    case 'p':
      return put_number(sink, spec, reinterpret_cast<uintptr_t>(va_arg(*args, void*)), 16, "0x");
    default: {
      uint64_t value = spec.length == 'j' ? va_arg(*args, unsigned long long)
                       : spec.length      ? va_arg(*args, unsigned long)
                                          : va_arg(*args, unsigned);
      return put_number(sink, spec, value, spec.conversion == 'x' ? 16 : 10, "");
    }
  }
}

size_t format_with(bool escape, char* out, size_t size, const char* format, va_list args)
    __attribute__((format(printf, 4, 0)));
size_t format_with(bool escape, char* out, size_t size, const char* format, va_list args) {
  if (size == 0) return 0;
  Sink sink{out, size - 1, escape};
  va_list rest;
  va_copy(rest, args);
  const char* p = format;
  while (*p) {
    if (*p != '%') {
      sink.put(*p++);
      continue;
    }
    if (p[1] == '%') {
      sink.put('%');
      p += 2;
      continue;
    }
    Spec spec;
    const char* end = parse_spec(p + 1, &rest, &spec);
    if (!end) break;
    put_directive(&sink, spec, &rest);
    p = end;
  }
  while (*p) sink.put(*p++);
  va_end(rest);
  out[sink.length] = '\0';
  return sink.length;
}

}  // namespace

size_t vformat_to(char* out, size_t size, const char* format, va_list args) {
  return format_with(false, out, size, format, args);
}
size_t vformat_line_to(char* out, size_t size, const char* format, va_list args) {
  return format_with(true, out, size, format, args);
}

size_t format_line_to(char* out, size_t size, const char* format, ...) {
  va_list args;
  va_start(args, format);
  size_t length = vformat_line_to(out, size, format, args);
  va_end(args);
  return length;
}

size_t format_to(char* out, size_t size, const char* format, ...) {
  va_list args;
  va_start(args, format);
  size_t length = vformat_to(out, size, format, args);
  va_end(args);
  return length;
}

}  // namespace lunar
