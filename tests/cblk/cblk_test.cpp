// SPDX-License-Identifier: Apache-2.0
// The runner and the devices of the block library's tests: see cblk_test.h.
#include "cblk_test.h"
#include "tests/support/refused_calls.h"
#include "tests/support/seed.h"

#include <dirent.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <linux/fs.h>
#include <linux/loop.h>

#include <algorithm>
#include <atomic>

#ifdef __SANITIZE_THREAD__
// Forked children of a program with threads start threads of their own here.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

namespace cblk_test {

using lunar_test::Case;
namespace {

std::string kind_name, directory;
bool everything = false, refused = false;
pid_t main_process;
std::vector<std::string> files;
// Held open: a loop device ends with its last opener, also when the test is killed.
std::vector<int> loops;
std::vector<const char*> arguments;  // of the program, without cases
std::vector<const Case*> left;       // the running case and those after it
double case_waited = 0;
constexpr double kNoCpuMin = 0.05;
constexpr int kAttempts = 4;
constexpr size_t kShares = 6;

bool has_tag(const Case& one, const char* tag) { return strstr(one.tags, tag) != nullptr; }

// Writes zeros: a write into reserved space would convert the extent, under a lock of the file.
void make_file(const std::string& path, size_t bytes) {
  static char zeros[1 << 20];
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool good = fd >= 0;
  for (size_t at = 0; good && at < bytes; at += sizeof zeros) {
    const size_t part = bytes - at < sizeof zeros ? bytes - at : sizeof zeros;
    good = write(fd, zeros, part) == static_cast<ssize_t>(part);
  }
  REQUIRE(good && fdatasync(fd) == 0, "%s", path.c_str());
  close(fd);
}

// "" when this host gives this user no loop device.
std::string attach_loop(const std::string& file) {
  const int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
  if (control < 0) return "";
  std::string path;
  for (int i = 0; i < 50 && path.empty(); ++i) {
    const int number = ioctl(control, LOOP_CTL_GET_FREE, 0);
    if (number < 0) break;
    const std::string name = "/dev/loop" + std::to_string(number);
    const int loop = open(name.c_str(), O_RDWR | O_CLOEXEC),
              backing = open(file.c_str(), O_RDWR | O_CLOEXEC);
    if (loop >= 0 && backing >= 0) {
      loop_config config = {};
      config.fd = static_cast<unsigned>(backing);
      config.block_size = 4096;
      config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
      if (ioctl(loop, LOOP_CONFIGURE, &config) == 0)
        path = name;
      else if (errno != EBUSY)
        i = 50;
    }
    if (!path.empty())
      loops.push_back(loop);
    else if (loop >= 0)
      close(loop);
    if (backing >= 0) close(backing);
    if (loop < 0) break;
  }
  close(control);
  return path;
}

// The namespaces that were given to kind nvme, one for each size and number that cases ask for.
struct Namespace {
  std::string uri, block_device;
  size_t blocks;
  int number = -1;  // of the device(), once it is used
};
std::vector<Namespace> namespaces;

void take_namespaces(const char* list) {  // /dev/ng0n3,/dev/ng0n4,...
  for (const char* at = list; *at;) {
    const std::string path(at, strcspn(at, ","));
    at += path.size() + (at[path.size()] == ',' ? 1 : 0);
    unsigned controller, number;
    unsigned long long sectors = 0;
    if (sscanf(path.c_str(), "/dev/ng%un%u", &controller, &number) == 2) {
      const std::string name = "nvme" + std::to_string(controller) + "n" + std::to_string(number);
      if (FILE* file = fopen(("/sys/class/block/" + name + "/size").c_str(), "r")) {
        if (fscanf(file, "%llu", &sectors) != 1) sectors = 0;
        fclose(file);
      }
      namespaces.push_back({"nvme:" + path, "/dev/" + name, sectors * 512 / kBlock});
    }
    if (sectors == 0) {
      fprintf(stderr, "%s: not a namespace of a size\n", path.c_str());
      _exit(2);
    }
  }
}

std::string fresh_namespace(size_t blocks, int number) {
  Namespace* found = nullptr;
  for (Namespace& one : namespaces)
    if (one.blocks == blocks && one.number == number) found = &one;
  for (Namespace& one : namespaces)
    if (!found && one.blocks == blocks && one.number < 0) found = &one;
  REQUIRE(found, "no namespace is left of %zu blocks", blocks);
  found->number = number;
  const int fd = open(found->block_device.c_str(), O_RDWR | O_CLOEXEC);
  uint64_t range[2] = {0, blocks * kBlock};
  REQUIRE(fd >= 0 && ioctl(fd, BLKZEROOUT, range) == 0);
  close(fd);
  return found->uri;
}

void clean_up() {
  if (getpid() != main_process) return;
  for (const int loop : loops) close(loop);
  for (const std::string& file : files) unlink(file.c_str());
  if (!directory.empty()) rmdir(directory.c_str());
  loops.clear();
  files.clear();
}

// Seconds that the threads of this process were ready to run and had no CPU, as the kernel counts
// them.
double waited_for_a_cpu() {
  double sum = 0;
  DIR* threads = opendir("/proc/self/task");
  while (const dirent* thread = threads ? readdir(threads) : nullptr) {
    unsigned long long ran, waited;
    FILE* file =
        fopen((std::string("/proc/self/task/") + thread->d_name + "/schedstat").c_str(), "r");
    if (file && fscanf(file, "%llu %llu", &ran, &waited) == 2)
      sum += static_cast<double>(waited) * 1e-9;
    if (file) fclose(file);
  }
  if (threads) closedir(threads);
  return sum;
}

// Cases that are tagged [timed] expect their threads to run within tenths of a second. If one fails
// while its threads waited for a CPU, the failure proves nothing: it and the cases after it run
// again in a new program. All other failures count. Returns if this one counts.
void run_again_if_starved() {
  if (getpid() != main_process || left.empty() || !has_tag(*left.front(), "[timed]")) return;
  const double waited = waited_for_a_cpu() - case_waited;
  const char* before = getenv("CBLK_TEST_ATTEMPT");
  const int attempt = before ? atoi(before) : 1;
  if (waited < kNoCpuMin || attempt == kAttempts) return;
  fprintf(stderr, "case %s: its threads waited %.0f ms for a CPU; it runs again\n",
          left.front()->name, waited * 1e3);
  setenv("CBLK_TEST_ATTEMPT", std::to_string(attempt + 1).c_str(), 1);
  std::vector<const char*> words = arguments;
  for (const Case* one : left) words.push_back(one->name);
  words.push_back(nullptr);
  clean_up();
  execv("/proc/self/exe", const_cast<char**>(words.data()));
}

// After a failed check.
void end_badly() {
  fprintf(stderr, "in case %s\n", left.empty() ? "-" : left.front()->name);
  fflush(nullptr);
  run_again_if_starved();
  clean_up();
}

[[noreturn]] void skip(const char* capability, const char* reason) {
  clean_up();
  SKIP(capability, reason);
}

std::string make_directory(const char* in) {
  std::string path = std::string(in) + "/lunar-cblk-XXXXXX";
  if (!mkdtemp(path.data())) {
    fprintf(stderr, "%s: %s\n", path.c_str(), strerror(errno));
    _exit(1);
  }
  return path;
}

}  // namespace

const std::string& kind() { return kind_name; }
bool survives() { return kind_name != "sim"; }
bool full_strength() { return everything; }

std::string device(size_t blocks, int number) {
  if (kind_name == "sim") return "sim:" + std::to_string(blocks * kBlock);
  if (kind_name == "nvme") return fresh_namespace(blocks, number);
  const std::string file =
      directory + "/lun" + std::to_string(number) + "-" + std::to_string(blocks);
  bool known = false;
  for (const std::string& one : files) known |= one == file;
  if (kind_name != "block") {
    make_file(file, blocks * kBlock);
    if (!known) files.push_back(file);
    return kind_name == "pmem" ? "pmem:" + file : file;
  }
  static std::vector<std::pair<std::string, std::string>> attached;
  for (const auto& [name, loop] : attached) {
    if (name != file) continue;
    Buffer zeros(256);  // to use the device again
    memset(zeros, 0, 256 * kBlock);
    const int fd = open(loop.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT);
    for (size_t at = 0; at < blocks; at += 256) {
      const size_t bytes = (blocks - at < 256 ? blocks - at : 256) * kBlock;
      REQUIRE(pwrite(fd, zeros, bytes, static_cast<off_t>(at * kBlock)) ==
              static_cast<ssize_t>(bytes));
    }
    close(fd);
    return loop;
  }
  make_file(file, blocks * kBlock);
  files.push_back(file);
  const std::string loop = attach_loop(file);
  if (loop.empty()) skip("loop", "no loop device can be set up here");
  attached.emplace_back(file, loop);
  return loop;
}

chunk_id_t open_physical(size_t blocks, int requests, int flags, int mode) {
  const std::string path = device(blocks);
  const chunk_id_t id = cblk_open(path.c_str(), requests, mode, 0, flags);
  REQUIRE(id != NULL_CHUNK_ID);
  return id;
}

chunk_id_t open_sim(const char* settings, int requests, int flags, int mode) {
  const chunk_id_t id =
      cblk_open((std::string("sim:16m,") + settings).c_str(), requests, mode, 0, flags);
  REQUIRE(id != NULL_CHUNK_ID);
  return id;
}

Buffer::Buffer(size_t blocks, size_t skew) : skew_(skew) {
  memory_ = static_cast<char*>(aligned_alloc(kBlock, (blocks + (skew ? 1 : 0)) * kBlock));
  REQUIRE(memory_);
  memset(memory_, 0x5a, (blocks + (skew ? 1 : 0)) * kBlock);
}

void stamp(char* block, uint64_t lba, uint64_t version) {
  uint64_t words[kBlock / 8];
  uint64_t x = lba * 0x9e3779b97f4a7c15 ^ version * 0xbf58476d1ce4e5b9;
  words[0] = lba;
  words[1] = version;
  for (size_t i = 2; i < kBlock / 8; ++i) words[i] = x += 0x94d049bb133111eb;
  memcpy(block, words, kBlock);
}

bool is_stamped(const char* block, uint64_t lba, uint64_t version) {
  char wanted[kBlock];
  stamp(wanted, lba, version);
  return memcmp(block, wanted, kBlock) == 0;
}

bool is_zero(const Buffer& buffer, size_t n) {
  for (size_t i = 0; i < n * kBlock; ++i) {
    if (buffer.data()[i] != 0) return false;
  }
  return true;
}

bool holds(const std::string& device, uint64_t lba, uint64_t version) {
  const Chunk id(cblk_open(device.c_str(), 0, O_RDONLY, 0, 0));
  Buffer block(1);
  REQUIRE(cblk_read(id, block, static_cast<off_t>(lba), 1, 0) == 1);
  return is_stamped(block, lba, 1, version);
}

double seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

cblk_status_type_t status_of(cblk_arw_status_t& status) {
  return std::atomic_ref<cblk_status_type_t>(status.status).load(std::memory_order_acquire);
}

void await_status(cblk_arw_status_t& status) {
  const double end = seconds() + tier::scaled(60);
  while (status_of(status) == CBLK_ARW_STATUS_PENDING) {
    REQUIRE(seconds() < end);
    usleep(100);
  }
}

uint64_t seed() { return tier::run_seed(); }

void refuse_rings() {
  refused = true;
  REQUIRE(refuse_calls({SYS_io_uring_setup}, true));
}

namespace {

struct Arguments {
  std::vector<std::string> cases;
  bool good = false;
};

Arguments parse(int argc, char** argv) {
  Arguments out;
  if (argc < 2) return out;
  for (const char* name : {"CFLSH_BLK_MAX_XFER", "CFLSH_BLK_CACHE_SIZE", "CFLSH_BLK_TIMEOUT",
                           "CFLSH_BLK_TIMEOUT_UNITS", "CFLSH_BLK_TRACE", "CFLSH_BLK_SIZE"})
    unsetenv(name);
  kind_name = argv[1];
  if (kind_name.compare(0, 5, "nvme=") == 0) {
    take_namespaces(argv[1] + 5);
    kind_name = "nvme";
  }
  arguments = {argv[0], argv[1]};
  for (int i = 2; i < argc; ++i) {
    if (argv[i][0] != '-') {
      out.cases.emplace_back(argv[i]);
      continue;
    }
    arguments.push_back(argv[i]);
    everything |= strcmp(argv[i], "--all") == 0;
    if (strcmp(argv[i], "--no-ring") == 0) refuse_rings();
  }
  out.good = true;
  return out;
}

bool is_chosen(const Case& one, const std::vector<std::string>& named) {
  bool fits = true;
  for (const auto& [tag, here] : {std::pair{"[sim]", kind_name == "sim"},
                                  {"[file]", kind_name == "file"},
                                  {"[disk]", kind_name != "sim" && kind_name != "pmem"},
                                  {"[not-nvme]", kind_name != "nvme"},
                                  {"[kept]", survives()},
                                  {"[ring]", !refused}})
    fits &= here || !has_tag(one, tag);
  if (!fits) return false;
  if (named.empty()) return everything || !has_tag(one, "[.]");
  return std::find(named.begin(), named.end(), one.name) != named.end();
}

std::vector<const Case*> chosen_cases(const std::vector<std::string>& named) {
  std::vector<const Case*> out;
  for (const Case* one = lunar_test::g_cases; one; one = one->next)
    if (is_chosen(*one, named)) out.push_back(one);
  std::reverse(out.begin(), out.end());  // as in the source
  return out;
}

// Each `step`th case from `first` on, one after the other, with devices of this process.
void run_cases(const std::vector<const Case*>& chosen, size_t first, size_t step) {
  main_process = getpid();
  if (kind_name == "pmem")
    directory = make_directory("/dev/shm");
  else if (kind_name != "sim")
    directory = make_directory("/var/tmp");
  for (size_t i = first; i < chosen.size(); i += step) left.push_back(chosen[i]);
  while (!left.empty()) {
    const double start = seconds();
    case_waited = waited_for_a_cpu();
    left.front()->body();
    printf("ok %-40s %6.0f ms\n", left.front()->name, (seconds() - start) * 1e3);
    left.erase(left.begin());
  }
  clean_up();
}

// Most cases wait for a time limit or a device, so several processes share them. Returns the exit
// code.
int run_in_shares(const std::vector<const Case*>& chosen, size_t shares) {
  (void)seed();  // one for all
  std::vector<pid_t> children;
  for (size_t i = 0; i < shares; ++i)
    children.push_back(fork_child([&] { run_cases(chosen, i, shares); }));
  bool skipped = false, failed = false;
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    const bool skips = WIFEXITED(status) && WEXITSTATUS(status) == 77;
    skipped |= skips;
    failed |= status != 0 && !skips;
  }
  return failed ? 1 : skipped ? 77 : 0;
}

}  // namespace
}  // namespace cblk_test

int main(int argc, char** argv) {
  main_process = getpid();
  lunar_test::g_at_failure = end_badly;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const Arguments given = parse(argc, argv);
  if (!given.good) {
    fprintf(stderr,
            "usage: %s file|block|sim|pmem|nvme=NAMESPACE,... [--all] [--no-ring] [CASE...]\n",
            argv[0]);
    return 2;
  }
  const std::vector<const Case*> chosen = chosen_cases(given.cases);
  if (chosen.empty()) return 1;
  int code = 0;
  if (given.cases.empty() && kind_name != "nvme")  // each namespace serves one case
    code = run_in_shares(chosen, kShares);
  else
    run_cases(chosen, 0, 1);
  printf("%zu cases on %s\n", chosen.size(), kind_name.c_str());
  return code;
}
