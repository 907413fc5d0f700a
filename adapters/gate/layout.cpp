// SPDX-License-Identifier: Apache-2.0
// Clients and databases of a server whose data is known: see layout.h.
#include "layout.h"

#include <cstring>

#include "lookup_steps.h"
#include "sys/mem.h"
#include "sys/proc.h"

namespace lunar::redis {
namespace {

constexpr const char* kIoThread = "io_thd_";
constexpr unsigned kArgumentsChecked = 64;  // later ones are trusted

}  // namespace

const uint8_t* key_header(const ObjectView* object) {
  return reinterpret_cast<const uint8_t*>(object + 1) + (object->has_expiry() ? 8 : 0);
}

uint64_t sds_length(const char* text) {
  const auto flag = static_cast<uint8_t>(text[-1]);
  switch (flag & 7) {
    case 0:
      return flag >> 3;
    case 1:
      return static_cast<uint8_t>(text[-3]);
    case 2: {
      uint16_t n;
      memcpy(&n, text - 5, sizeof n);
      return n;
    }
    case 3: {
      uint32_t n;
      memcpy(&n, text - 9, sizeof n);
      return n;
    }
    case 4: {
      uint64_t n;
      memcpy(&n, text - 17, sizeof n);
      return n;
    }
    default:
      return 0;
  }
}

bool ServerLayout::io_threads_may_read() const {
  return keyspace() != Keyspace::kDict && sys::has_thread_named(kIoThread);
}

bool ServerLayout::io_thread_reads() const {
  return (io_threads_op_ != nullptr && *io_threads_op_ == 1) ||
         sys::this_thread_is_named(kIoThread);
}

int ServerLayout::event_mask(int fd) const {
  const char* loop = *loop_;
  return fd >= 0 && fd < at<int32_t>(loop, shape_->loop_size)
             ? at<const FileEventView*>(loop, shape_->loop_events)[fd].mask
             : 0;
}

int ServerLayout::transport_of(const void* handler, const void* type) const {
  for (int t = 0; t < kTransports; ++t)
    if (types_[t] != nullptr && type == types_[t] && handler == handlers_[t]) return t;
  return -1;
}

const ClientView* ServerLayout::client_of(int fd, uint64_t replication_flags) const {
  if ((event_mask(fd) & 1) == 0) return nullptr;
  const FileEventView& event = at<const FileEventView*>(*loop_, shape_->loop_events)[fd];
  const bool known = event.read_handler == handlers_[0] || event.read_handler == handlers_[1] ||
                     event.read_handler == handlers_[2];
  if (event.data == nullptr || event.read_handler == nullptr || !known)
    return nullptr;  // the event's data is no connection
  const void* connection = event.data;
  if (transport_of(event.read_handler, at<const void*>(connection, 0)) < 0 ||
      at<int32_t>(connection, shape_->connection_fd) != fd ||
      at<const void*>(connection, shape_->connection_reader) != read_query_)
    return nullptr;
  const auto* client = at<const ClientView*>(connection, shape_->connection_client);
  if (client == nullptr || at<const void*>(client, shape_->client_connection) != connection ||
      (at<uint64_t>(client, shape_->client_flags) & 3) != replication_flags)
    return nullptr;
  const auto offset =
      static_cast<size_t>(at<const char*>(client, shape_->client_database) - databases_);
  if (offset >= size_t{database_count_} * shape_->database_bytes ||
      offset % shape_->database_bytes != 0)
    return nullptr;
  return client;
}

bool ServerLayout::foreign_client(int fd) const {
  if ((event_mask(fd) & 1) == 0) return false;
  const void* words[12];
  const void* connection = at<const FileEventView*>(*loop_, shape_->loop_events)[fd].data;
  if (sys::peek(connection, words, sizeof words) != 0 || words[0] == nullptr ||
      (words[0] != types_[0] && words[0] != types_[2]))
    return false;
  bool reads_queries = false;
  for (const void* word : words) reads_queries |= word == read_query_;
  if (!reads_queries) return false;  // a replication link
  const void *back = nullptr, *reader = words[shape_->connection_reader / 8];
  const char* client = static_cast<const char*>(words[shape_->connection_client / 8]);
  return reader != read_query_ ||
         sys::peek(client + shape_->client_connection, &back, sizeof back) != 0 ||
         back != connection;
}

bool ServerLayout::progress_of(const ClientView& client, const void* buffer, Progress* out) const {
  return at<uint64_t>(&client, shape_->client_buffer + 8u) == 0 &&
         progress_behind(client, 0, buffer, out);
}

bool ServerLayout::progress_of_master(const ClientView& master, const void* buffer,
                                      Progress* out) const {
  return progress_behind(master, at<uint64_t>(&master, shape_->client_buffer + 8u), buffer, out);
}

// `used`: bytes at the start of its buffer that the server has executed.
bool ServerLayout::progress_behind(const ClientView& client, uint64_t used, const void* buffer,
                                   Progress* out) const {
  const char* text = at<const char*>(&client, shape_->client_buffer);
  const int32_t left = at<int32_t>(&client, shape_->client_left),
                taken = at<int32_t>(&client, shape_->client_argc);
  if (text == nullptr || left < 0 || used > sds_length(text)) return false;
  *out = {text + used, sds_length(text) - used, left == 0 ? 0u : static_cast<unsigned>(taken),
          static_cast<unsigned>(left), at<int64_t>(&client, shape_->client_bulk)};
  return out->text + out->bytes == buffer && (left != 0 || out->bulk == -1) && out->bulk >= -1 &&
         out->bulk <= static_cast<int64_t>(kBulkMax) && out->taken <= kArgumentsMax &&
         out->left <= kArgumentsMax;
}

Arguments ServerLayout::arguments_taken(const ClientView& client, const Progress& progress,
                                        Command* out, NonresidentRanges* missing) {
  const auto* const* argument = at<const ObjectView* const*>(&client, shape_->client_argv);
  KeyLookup lookup{*this, missing};
  for (unsigned i = 0; i < progress.taken && i < kArgumentsKept && !missing->full(); ++i) {
    const ObjectView* object;
    if (!lookup.have(argument + i, sizeof *argument) ||
        !lookup.have(object = argument[i], sizeof *object))
      continue;
    ErrorText why;
    if (arguments_checked_ < kArgumentsChecked) {
      if (check_object(object, &why) < 0) return Arguments::kUnknown;
      ++arguments_checked_;
    }
    if (object->type() != 0 || object->encoding() == 1) return Arguments::kUnknown;
    if (lookup.have_text(object->pointer))
      out->argument[i] = {object->pointer, sds_length(object->pointer)};
  }
  return lookup.misses == 0 ? Arguments::kThere : Arguments::kCold;
}

int ServerLayout::database_of(const ClientView& client) const {
  return static_cast<int>(
      static_cast<size_t>(at<const char*>(&client, shape_->client_database) - databases_) /
      shape_->database_bytes);
}

const DatabaseView* ServerLayout::database(int index) const {
  if (index < 0 || static_cast<unsigned>(index) >= database_count_) return nullptr;
  return reinterpret_cast<const DatabaseView*>(databases_ +
                                               static_cast<size_t>(index) * shape_->database_bytes);
}

}  // namespace lunar::redis
