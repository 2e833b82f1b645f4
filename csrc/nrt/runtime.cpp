// SPDX-License-Identifier: Apache-2.0
// The one NRT library of this process: loading, nrt_init, nrt_close, and what happens across a fork.
#include "nrt/runtime.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <string_view>

#include "core/log.h"
#include "core/shared_library.h"
#include "nrt/selection.h"

namespace nxl::nrt {
namespace {

constexpr const char* kDocumentedLibrary = "/opt/aws/neuron/lib/libnrt.so.1";
constexpr std::chrono::seconds kCloseBound{10};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// A library with its table. Never closed: its threads and thread-local destructors may outlive everything of ours.
struct Loaded {
  Choice choice;
  SharedLibrary file;
  Api api;
};

void fill(Api& api, const SharedLibrary& file) {
  std::string missing;
#define NXL_NRT_LOOKUP(name) api.name = reinterpret_cast<decltype(api.name)>(file.symbol(#name));
#define NXL_NRT_DEMAND(name) \
  NXL_NRT_LOOKUP(name)       \
  if (api.name == nullptr) missing += missing.empty() ? #name : ", " #name;
  NXL_NRT_REQUIRED(NXL_NRT_DEMAND)
  NXL_NRT_OPTIONAL(NXL_NRT_LOOKUP)
#undef NXL_NRT_DEMAND
#undef NXL_NRT_LOOKUP
  NXL_CHECK(missing.empty(), kUnavailable, file.path(), " does not export ", missing, "; an NRT library with API ",
            NRT_API_VERSION_MAJOR, ".", NRT_API_VERSION_MINOR, " or newer is needed");
}

Loaded* load(const Choice& choice) {
  auto loaded = std::make_unique<Loaded>();
  loaded->choice = choice;
  try {
    loaded->file = SharedLibrary::open(choice.dlopen_name);
  } catch (const Error& error) {
    const bool by_soname = !choice.host && choice.dlopen_name.find('/') == std::string::npos;
    try {
      if (!by_soname) throw;
      loaded->file = SharedLibrary::open(kDocumentedLibrary);
    } catch (const Error& second) {
      throw_error(ErrorKind::kUnavailable,
                  detail::concat(
                      error.what(), by_soname ? "; " : "", by_soname ? second.what() : "", " (", choice.reason, "). ",
                      choice.host ? "Reinstall the package, or set NEURON_LIBTORCH_NRT_LIBRARY to the file"
                                  : "Install aws-neuronx-runtime-lib, set NEURON_LIBTORCH_NRT_LIBRARY to the "
                                    "file, or set NEURON_LIBTORCH_RUNTIME=host to run on the CPU"));
    }
  }
  loaded->choice.dlopen_name = loaded->file.path();
  fill(loaded->api, loaded->file);
  return loaded.release();
}

std::string name_of(const Api& api, int status) {
  const char* name = api.nrt_get_status_as_str(static_cast<NRT_STATUS>(status));
  return name != nullptr ? name : "unknown status";
}

ErrorKind kind_of(int status) {
  switch (status) {
    case NRT_INVALID:
    case NRT_INVALID_HANDLE:
    case NRT_UNSUPPORTED_NEFF_VERSION:
      return ErrorKind::kInvalid;
    case NRT_FAIL_HOST_MEM_ALLOC:
      return ErrorKind::kOutOfMemory;
    case NRT_CLOSED:
      return ErrorKind::kClosed;
    case NRT_RESOURCE:
    case NRT_LOAD_NOT_ENOUGH_NC:
    case NRT_UNINITIALIZED:
    case NRT_EXEC_NC_BUSY:
      return ErrorKind::kUnavailable;
    default:
      return ErrorKind::kExecution;
  }
}

// The variables that nrt_init reads and that are set, as " NAME=value NAME=value": NRT says only that one is wrong.
std::string init_settings() {
  std::string out;
  for (const char* name : {"NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "NEURON_LOGICAL_NC_CONFIG",
                           "NEURON_RT_ROOT_COMM_ID", "NEURON_RT_XU_COMPUTE_MAX_QUEUED_REQUESTS",
                           "NEURON_LIBTORCH_HOST_CLAIM_DIR", "NEURON_LIBTORCH_HOST_MEMORY_LIMIT_MB",
                           "NEURON_LIBTORCH_HOST_THREADS_PER_CORE", "NEURON_LIBTORCH_HOST_INLINE"}) {
    const std::string value = environment(name);
    if (!value.empty()) out += detail::concat(" ", name, "=", value);
  }
  return out;
}

std::string init_remedy(int status) {
  const std::string settings = init_settings();
  const std::string set = settings.empty() ? "" : " (set here:" + settings + ")";
  switch (status) {
    case NRT_EXEC_NC_BUSY:
    case NRT_LOAD_NOT_ENOUGH_NC:
    case NRT_RESOURCE:
      return ". Another process holds a core: choose free ones with NEURON_RT_VISIBLE_CORES" + set;
    case NRT_INVALID:
      return settings.empty() ? ". Check the NEURON_RT_* variables" : ". Check" + settings;
    default:
      return set;
  }
}

// libnrt_host.so says what it is; NEURON_LIBTORCH_NRT_LIBRARY may name the other kind of library than was chosen.
void check_kind(const Loaded& loaded) {
  constexpr std::string_view kHostMark = "libnrt_host";
  nrt_version_t version{};
  const bool known = loaded.api.nrt_get_version(&version, sizeof(version)) == NRT_SUCCESS;
  const bool host =
      known &&
      std::string_view(version.rt_detail, strnlen(version.rt_detail, sizeof(version.rt_detail))).starts_with(kHostMark);
  NXL_CHECK(host == loaded.choice.host, kUnavailable, loaded.choice.dlopen_name, host ? " is" : " is not",
            " the host runtime, but ", loaded.choice.reason, "; set NEURON_LIBTORCH_RUNTIME=", host ? "host" : "nrt",
            " or NEURON_LIBTORCH_NRT_LIBRARY to match");
}

std::atomic<Observer*> current_observer{nullptr};

}  // namespace

struct Runtime::Library {
  Loaded* loaded = nullptr;  // owned by the process, never freed
  std::atomic<bool> open{false};
  mutable std::shared_mutex life;  // shared: an OpenScope; exclusive: the moment of close
};

// All that is process-wide. Made on first use and never destroyed: deleters may run after static destructors.
struct Process {
  std::mutex mutex;
  Loaded* loaded = nullptr;  // the last library loaded
  std::shared_ptr<Runtime> runtime;
  std::atomic<Loaded*> named{nullptr};  // for status names, without the mutex
  bool closed = false;
  std::atomic<bool> forked{false};  // a child of a process whose runtime was initialised

  static Process& get() {
    static Process* const process = [] {
      auto* made = new Process;
      // The mutex is held across fork, so the child never inherits it locked by a thread that it does not have.
      pthread_atfork([] { Process::get().mutex.lock(); }, [] { Process::get().mutex.unlock(); },
                     [] { Process::get().after_fork_in_child(); });
      return made;
    }();
    return *process;
  }

  void after_fork_in_child() {
    if (runtime != nullptr) {
      forked = true;
      runtime->library_->open = false;
    }
    mutex.unlock();
  }

  // Under the mutex. Loads again only when the choice changed (the environment may change until init).
  Loaded& library() {
    const Choice choice = Runtime::choose();
    const bool same =
        loaded != nullptr && loaded->choice.host == choice.host &&
        (loaded->choice.dlopen_name == choice.dlopen_name || choice.dlopen_name.find('/') == std::string::npos);
    if (!same) {
      loaded = load(choice);
      named = loaded;
    }
    return *loaded;
  }

  void check_usable() const {
    NXL_CHECK(
        !forked, kUnavailable,
        "this process was forked after its parent had initialised the Neuron runtime, which does not survive a "
        "fork; start workers with the 'spawn' or 'forkserver' method, or fork before the first use of the device");
    NXL_CHECK(!closed, kClosed,
              "the Neuron runtime was closed in this process; it can be initialised once per process only");
  }

  std::shared_ptr<Runtime> initialize() {
    Loaded& from = library();
    std::shared_ptr<Runtime> made(new Runtime);
    made->library_->loaded = &from;
    made->api_ = from.api;
    made->choice_ = from.choice;
    if (from.choice.chip_suspected) {
      NXL_LOG(kWarning, from.choice.reason);
    } else {
      NXL_LOG(kInfo, from.choice.reason, " (", from.choice.dlopen_name, ")");
    }
    check_kind(from);
    const int status = from.api.nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "", "");
    if (status != NRT_SUCCESS) {
      throw_error(ErrorKind::kUnavailable,
                  detail::concat("nrt_init failed with ", name_of(from.api, status), " (", status, ") in ",
                                 from.choice.dlopen_name, init_remedy(status)),
                  status);
    }
    uint32_t count = 0;
    NXL_NRT_CHECK(from.api.nrt_get_visible_vnc_count(&count), "nrt_get_visible_vnc_count", "after nrt_init");
    made->core_count_ = static_cast<int>(count);
    made->library_->open = true;
    return made;
  }
};

Runtime::Runtime() : library_(std::make_unique<Library>()) {}

Runtime::~Runtime() = default;

Choice Runtime::choose() {
  return select(environment("NEURON_LIBTORCH_RUNTIME"), environment("NEURON_LIBTORCH_NRT_LIBRARY"), Machine::probe());
}

std::shared_ptr<Runtime> Runtime::get() {
  Process& process = Process::get();
  const std::lock_guard lock(process.mutex);
  process.check_usable();
  if (process.runtime == nullptr) process.runtime = process.initialize();
  return process.runtime;
}

std::shared_ptr<Runtime> Runtime::get_if_initialized() noexcept {
  Process& process = Process::get();
  if (process.forked) return nullptr;
  const std::lock_guard lock(process.mutex);
  return process.runtime;
}

void Runtime::close() {
  Process& process = Process::get();
  std::shared_ptr<Runtime> runtime;
  {
    const std::lock_guard lock(process.mutex);
    if (process.forked || process.runtime == nullptr) return;
    runtime = std::move(process.runtime);
    process.runtime = nullptr;
    process.closed = true;
  }
  if (Observer* observer = current_observer.load()) observer->before_close(kCloseBound);
  {
    const std::unique_lock lock(runtime->library_->life);
    runtime->library_->open = false;
  }
  runtime->api_.nrt_close();
}

bool Runtime::is_open() const noexcept { return library_->open.load(std::memory_order_acquire); }

void Runtime::check_core(int core) const {
  NXL_CHECK(core >= 0 && core < core_count_, kInvalid, "core ", core, " does not exist: this process sees ",
            core_count_, core_count_ == 1 ? " core (0)" : detail::concat(" cores (0 to ", core_count_ - 1, ")"),
            "; NEURON_RT_VISIBLE_CORES or NEURON_RT_NUM_CORES sets which");
}

std::pair<uint64_t, uint64_t> Runtime::memory(int core) const {
  check_core(core);
  nrt_vnc_memory_stats_t stats{};
  size_t written = 0;
  NXL_NRT_CHECK(api_.nrt_get_vnc_memory_stats(static_cast<uint32_t>(core), &stats, sizeof(stats), &written),
                "nrt_get_vnc_memory_stats", detail::concat("core ", core));
  return {stats.bytes_used, stats.bytes_limit};
}

std::string Runtime::version() const {
  nrt_version_t version{};
  NXL_NRT_CHECK(api_.nrt_get_version(&version, sizeof(version)), "nrt_get_version", choice_.dlopen_name);
  version.rt_detail[sizeof(version.rt_detail) - 1] = '\0';
  return detail::concat(version.rt_major, ".", version.rt_minor, ".", version.rt_patch, ".", version.rt_maintenance,
                        version.rt_detail[0] != '\0' ? " " : "", version.rt_detail);
}

std::string Runtime::status_name(int status) const { return name_of(api_, status); }

OpenScope::OpenScope(const Runtime* runtime) noexcept {
  // The first look is without the lock: in a forked child the lock may be held by a thread that does not exist there.
  if (runtime == nullptr || !runtime->is_open()) return;
  runtime->library_->life.lock_shared();
  if (runtime->is_open()) {
    runtime_ = runtime;
  } else {
    runtime->library_->life.unlock_shared();
  }
}

OpenScope::~OpenScope() {
  if (runtime_ != nullptr) runtime_->library_->life.unlock_shared();
}

void set_observer(Observer* observer) noexcept { current_observer = observer; }

void notify_tensor_free(nrt_tensor_t* tensor) noexcept {
  if (Observer* observer = current_observer.load(std::memory_order_acquire)) observer->before_tensor_free(tensor);
}

bool in_forked_child() noexcept { return Process::get().forked.load(std::memory_order_acquire); }

int visible_core_count() {
  Process& process = Process::get();
  const std::lock_guard lock(process.mutex);
  if (process.runtime != nullptr) return process.runtime->core_count();  // in a forked child too
  process.check_usable();
  uint32_t count = 0;
  NXL_NRT_CHECK(process.library().api.nrt_get_visible_vnc_count(&count), "nrt_get_visible_vnc_count",
                "NEURON_RT_VISIBLE_CORES or NEURON_RT_NUM_CORES may be wrong");
  return static_cast<int>(count);
}

void throw_status(int status, const char* call, const std::string& what) {
  const Loaded* named = Process::get().named.load();
  throw_error(kind_of(status),
              detail::concat(call, " failed with ", named != nullptr ? name_of(named->api, status) : "status", " (",
                             status, "): ", what),
              status);
}

}  // namespace nxl::nrt
