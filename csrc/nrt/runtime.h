// SPDX-License-Identifier: Apache-2.0
// The NRT library of this process: which one, its life cycle, its cores. Lazy: nothing happens before first use.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/api.h"
#include "core/error.h"
#include "nrt/api.h"

namespace nxl::nrt {

// The decision that NEURON_LIBTORCH_RUNTIME=auto|nrt|host and this machine lead to. Loads nothing.
struct Choice {
  bool host = true;             // libnrt_host.so, else libnrt.so.1
  std::string dlopen_name;      // path or soname that will be given to dlopen
  std::string reason;           // one sentence for `neuron-lite info` and the log
  bool chip_suspected = false;  // host was taken although libnrt.so.1 or a Neuron PCI device is present: WARNING
};

class NXL_API Runtime {
 public:
  // Throws Error(kInvalid) for an unknown value of the variable.
  static Choice choose();

  // The initialised runtime; the first call loads the library and calls nrt_init. Throws kUnavailable when the chosen
  // library does not load (never a silent fall to the other one), kClosed after close().
  static std::shared_ptr<Runtime> get();
  static std::shared_ptr<Runtime> get_if_initialized() noexcept;
  // nrt_close once every core's queue is drained (bounded by 10 s). Handles that outlive it become empty: their
  // deleters make no NRT call. Does nothing before the first get() and after the first close().
  static void close();

  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  const Api& api() const { return api_; }
  bool is_host() const { return choice_.host; }
  bool is_open() const noexcept;                    // false after close() and in a child forked after init
  const Choice& choice() const { return choice_; }  // `dlopen_name` is the file that was loaded
  int core_count() const { return core_count_; }    // visible cores
  void check_core(int core) const;  // throws kInvalid: names the valid range and the variables that set it
  std::pair<uint64_t, uint64_t> memory(int core) const;  // {bytes used, bytes limit}
  std::string version() const;
  std::string status_name(int status) const;

 private:
  friend class OpenScope;
  friend struct Process;
  Runtime();
  struct Library;
  std::unique_ptr<Library> library_;
  Api api_;
  Choice choice_;
  int core_count_ = 0;
};

// While one is alive and true, the runtime stays open: close() waits for it. What frees a handle holds one around the
// NRT call. Cheap; never held across a wait.
class NXL_API OpenScope {
 public:
  explicit OpenScope(const Runtime* runtime) noexcept;
  ~OpenScope();
  OpenScope(const OpenScope&) = delete;
  OpenScope& operator=(const OpenScope&) = delete;
  explicit operator bool() const { return runtime_ != nullptr; }

 private:
  const Runtime* runtime_ = nullptr;
};

// What the layer that keeps NRT handles of others in its own objects must do before they go away. One per process
// (csrc/loader sets it); called with no lock of this folder held.
class Observer {
 public:
  virtual void before_tensor_free(nrt_tensor_t* tensor) noexcept = 0;
  virtual void before_close(std::chrono::milliseconds bound) noexcept = 0;

 protected:
  ~Observer() = default;
};
NXL_API void set_observer(Observer* observer) noexcept;  // not owned; stays until process exit
void notify_tensor_free(nrt_tensor_t* tensor) noexcept;  // for csrc/nrt/tensor.cpp

// True in a child of a process whose runtime was initialised. Locks may be held there by threads that do not exist.
NXL_API bool in_forked_child() noexcept;

// The number of visible cores without initialising the runtime (nrt_get_visible_vnc_count may be called before init).
// Loads the library; throws as Runtime::get does when that fails.
NXL_API int visible_core_count();

// Throws Error with the call, the number, its name and `what` when status is not NRT_SUCCESS.
[[gnu::cold]] NXL_API void throw_status(int status, const char* call, const std::string& what);

}  // namespace nxl::nrt

#define NXL_NRT_CHECK(status_expr, call, what)                                                    \
  do {                                                                                            \
    const int nxl_status_ = (status_expr);                                                        \
    if (__builtin_expect(nxl_status_ != 0, 0)) ::nxl::nrt::throw_status(nxl_status_, call, what); \
  } while (0)
