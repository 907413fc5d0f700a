// SPDX-License-Identifier: Apache-2.0
// Backends of a block bench that take turns on one device: A B A B, as many rounds as asked for, and up to three times
// as many when others disturbed them; the quietest rounds count.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "tools/bench/bench_host.h"
#include "tools/bench/io/bench_backing.h"
#include "tools/bench/io/fio_job.h"
#include "tools/bench/io/io_report.h"
#include "tools/bench/progress.h"

namespace lunar::tools {

// One row of the report: a backend at a depth on a workload.
struct IoBackend {
  std::string system, workload;
  unsigned read_percent = 100, threads = 1, depth = 1;
};

class IoRounds {
 public:
  // Checks the host and makes the backing device; what cannot be measured is named in report.skipped. Throws
  // std::runtime_error.
  IoRounds(IoReport& report, size_t unit_bytes);
  // From now on in units of this size.
  void refill(size_t unit_bytes);
  // Measures all backends alternately, and adds their rows.
  void measure(const std::vector<IoBackend>& backends);
  // What cblk_read costs over the device, into report.cblk. pre: not both backends of it are skipped.
  void measure_cblk();
  // The device is read whole and must hold what was last written.
  void verify();
  void expect(unsigned runs) { progress_.total += runs; }
  bool wants(const std::string& system) const;
  void say(const std::string& text) { progress_.say(text); }
  ~IoRounds();

 private:
  IoOrder order_of(const IoBackend& backend) const;
  FioTarget fio_target() const;
  IoRun measure_run(const IoBackend& backend);
  IoReport& report_;
  BenchHost host_;
  std::string fio_;
  Progress progress_;
  std::unique_ptr<BenchBacking> backing_;
  bool stamped_ = true;  // false: the stamps were overwritten
  uint64_t runs_ = 0;
};

}  // namespace lunar::tools
