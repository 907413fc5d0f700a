// SPDX-License-Identifier: Apache-2.0
// The places of the newest root, the links and blocks of its state, and the records in the image of
// a store, for tests that damage or forge them. The image must be sound.
// Threading: no state. May not: be used by code that ships.
#pragma once
#include <string.h>

#include <string>
#include <vector>

#include "base/xxh3.h"
#include "kv/inspect.h"
#include "lun/volume/image_format.h"
#include "tests/kv/kv_support.h"

namespace kv_test {

namespace form = lunar::kv::media;
using ImageHeader = lunar::media::ImageHeader;

template <class T>
T read_at(const std::vector<char>& image, uint64_t at) {
  T out;
  memcpy(&out, image.data() + at, sizeof out);
  return out;
}
template <class T>
void write_at(std::vector<char>* image, uint64_t at, const T& value) {
  memcpy(image->data() + at, &value, sizeof value);
}

struct ImageMap {
  struct Link {
    uint64_t at, bytes;  // of the image; of state, behind its header
  };
  struct Place {
    uint64_t segment, offset, life;
    lunar::kv::RecordType type;
  };
  form::Superblock super;
  uint64_t root_at;  // of the newest, in the front; a body behind an ImageHeader
  form::Root root;
  std::vector<Link> links;
  std::string state;

  explicit ImageMap(const std::vector<char>& image) : super(read_at<form::Superblock>(image, 0)) {
    const auto sequence = [&](uint64_t at) { return read_at<ImageHeader>(image, at).sequence; };
    root_at = form::kFrontRootsAt;
    if (sequence(root_at) < sequence(root_at + form::kBlockBytes)) root_at += form::kBlockBytes;
    root = read_at<form::Root>(image, root_at + sizeof(ImageHeader));
    for (uint64_t next = root.first; next != 0;) {
      const uint64_t at = place(next - 1);
      const auto link = read_at<form::StateLink>(image, at);
      links.push_back({at, link.bytes});
      state.append(image.data() + at + sizeof link, link.bytes);
      next = link.next;
    }
    if (links.empty() || state.size() != root.bytes) FAIL("the links are not understood");
  }
  uint64_t place(uint64_t segment) const {
    return form::kHeadBytes + (segment << super.segment_bits);
  }
  uint64_t place(const Place& record) const { return place(record.segment) + record.offset; }
  lunar::kv::Address address(const Place& record) const {
    return lunar::kv::Address{((record.segment << super.segment_bits) + record.offset) /
                              lunar::kv::kUnitBytes};
  }
  // The blocks of the state; with a segment as the step, the first of each segment.
  std::vector<uint64_t> blocks(uint64_t step = form::kBlockBytes) const {
    std::vector<uint64_t> out;
    for (const Link& link : links)
      for (uint64_t at = 0; at < sizeof(form::StateLink) + link.bytes; at += step)
        out.push_back(link.at + at);
    return out;
  }
  form::SegmentEntry entry(uint64_t segment) const {
    form::SegmentEntry out;
    memcpy(&out, state.data() + segment * sizeof out, sizeof out);
    return out;
  }
  // The number of sets and deletes that the state calls unfinished.
  uint64_t hands() const {
    uint64_t out;
    memcpy(&out, state.data() + super.segment_count * sizeof(form::SegmentEntry), sizeof out);
    return out;
  }
  // The records of segments that the state knows, in their order.
  std::vector<Place> records(const std::vector<char>& image) const {
    std::vector<Place> out;
    for (uint64_t segment = 0; segment < super.segment_count; ++segment) {
      const form::SegmentEntry known = entry(segment);
      if (known.kind != form::SegmentKind::kRecords) continue;
      Place one{segment, segment == 0 ? lunar::kv::kUnitBytes : 0, known.life, {}};
      while (one.offset < known.used) {
        const auto* record = reinterpret_cast<const lunar::kv::Record*>(image.data() + place(one));
        if (record->checksum != record_checksum(record, address(one), one.life))
          FAIL("records are not understood");
        one.type = record->type();
        out.push_back(one);
        one.offset += record->span();
      }
    }
    return out;
  }
};

// Writes both copies, with the right checksum.
inline void seal_superblock(std::vector<char>* image, form::Superblock super) {
  super.checksum = XXH3_64bits(&super, offsetof(form::Superblock, checksum));
  for (const uint64_t at : {uint64_t{0}, form::kSecondSuperAt}) write_at(image, at, super);
}

}  // namespace kv_test
