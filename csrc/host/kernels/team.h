// SPDX-License-Identifier: Apache-2.0
// The threads that help a core's thread with one kernel.
//
// Note "A late helper costs nothing": at the end of an OpenMP region every thread waits for every other one, also for
// one that the system has not let run yet; with a second busy process that turned microseconds into milliseconds. Here
// work is taken in pieces, and the caller waits for pieces that were taken, never for a helper that took none.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace nxl::host {

class Team {
 public:
  // The calling thread's own team. Its helpers start when first needed and end with the calling thread.
  static Team& of_this_thread();

  Team() = default;
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Calls work(begin, end) for pieces that cover [0, total) once, on the caller and at most `threads` - 1 helpers, and
  // returns when all are done. `work` does not throw. Not reentrant.
  template <typename Work>
  void share(int threads, int64_t total, int64_t piece, const Work& work) {
    static_assert(noexcept(work(int64_t{}, int64_t{})), "a piece of work has nobody to throw to");
    if (threads <= 1 || total <= piece) {
      if (total > 0) work(0, total);
      return;
    }
    run(
        threads - 1, total, piece,
        [](const void* f, int64_t begin, int64_t end) { (*static_cast<const Work*>(f))(begin, end); }, &work);
  }

 private:
  using Call = void (*)(const void* work, int64_t begin, int64_t end);
  // Helpers hold it by reference count: one that wakes late finds nothing left to take and never follows `work`.
  struct Job {
    Call call;
    const void* work;
    int64_t total;
    int64_t piece;
    std::atomic<int> seats;  // helpers that may still join
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> left;  // elements not done yet
  };

  void run(int helpers, int64_t total, int64_t piece, Call call, const void* work);
  static void take_pieces(Job& job);
  void help();

  std::mutex mutex_;  // guards job_ and stop_
  std::condition_variable wake_;
  std::shared_ptr<Job> job_;
  std::atomic<uint64_t> posted_{0};  // jobs so far
  std::atomic<bool> stop_{false};
  std::vector<std::thread> helpers_;
};

}  // namespace nxl::host
