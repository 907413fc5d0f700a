// SPDX-License-Identifier: Apache-2.0
// A file that holds a heap must not be readable for every user: its rights are fixed, or it is
// refused (lun/scratch_open.cpp).
#include <errno.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/units.h"
#include "lun/compose.h"
#include "tests/catch.h"

using namespace lunar;

namespace {

struct Folder {
  std::string path;
  Folder() {
    char name[] = "/var/tmp/lunar-rights-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path = name;
    REQUIRE(chmod(name, 0755) == 0);
  }
  ~Folder() {
    for (const char* name : {"/a", "/b"}) unlink((path + name).c_str());
    rmdir(path.c_str());
  }
  std::string file(const char* name, mode_t mode, off_t bytes) const {
    std::string made = path + name;
    std::ofstream{made};
    REQUIRE(truncate(made.c_str(), bytes) == 0);
    REQUIRE(chmod(made.c_str(), mode) == 0);
    return made;
  }
};

mode_t mode_of(const std::string& path) {
  struct stat status{};
  REQUIRE(stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

int open_scratch(const std::string& uri, ErrorText* why) {
  DeviceOptions options;
  options.want_bytes = 16 * kMiB;
  Device* device = nullptr;
  const int rc = scratch_open(uri.c_str(), options, &device, why);
  if (rc == 0) device_close(device);
  return rc;
}

}  // namespace

TEST_CASE("a LUN file that others may read is taken away from them") {
  Folder folder;
  ErrorText why;
  const std::string empty = folder.file("/a", 0646, 0),
                    blank = folder.file("/b", 0664, 128 * static_cast<off_t>(kMiB));
  REQUIRE(open_scratch(empty, &why) == 0);
  CHECK(mode_of(empty) == 0640);
  REQUIRE(open_scratch(blank, &why) == 0);  // gets the format
  CHECK(mode_of(blank) == 0660);
  REQUIRE(chmod(blank.c_str(), 0666) == 0);
  REQUIRE(open_scratch(blank, &why) == 0);  // has it
  CHECK(mode_of(blank) == 0660);
  REQUIRE(chmod(blank.c_str(), 0604) == 0);
  REQUIRE(chmod(empty.c_str(), 0604) == 0);
  CHECK(open_scratch(folder.path, &why) == 0);  // a directory's files are unlinked
  CHECK(mode_of(folder.path) == 0755);
}

TEST_CASE("a LUN file of another user that others may read is refused") {
  if (geteuid() != 0) LUNAR_SKIP("root", "only root can be two users");
  Folder folder;
  const std::string path = folder.file("/a", 0666, 0);
  ErrorText why;
  REQUIRE(seteuid(65534) == 0);
  const int rc = open_scratch(path, &why);
  REQUIRE(seteuid(0) == 0);
  INFO(why.text);
  CHECK(rc == -EACCES);
  CHECK(std::string(why.text).find("chmod o-rwx") != std::string::npos);
  CHECK(mode_of(path) == 0666);
}
