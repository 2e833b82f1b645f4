// SPDX-License-Identifier: Apache-2.0
// dlopen and dlsym.
#include "core/shared_library.h"

#include <dlfcn.h>

#include "core/error.h"

namespace nxl {

SharedLibrary SharedLibrary::open(const std::string& path) {
  SharedLibrary library;
  // RTLD_LOCAL: two NRT libraries export the same names; none may answer for the other.
  library.handle_.reset(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (!library.handle_) {
    const char* why = dlerror();
    throw_error(ErrorKind::kUnavailable,
                detail::concat("cannot load ", path, ": ", why != nullptr ? why : "no reason"));
  }
  library.path_ = path;
  return library;
}

std::string SharedLibrary::directory_of(const void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  const std::string file = info.dli_fname;
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? std::string(".") : file.substr(0, slash);
}

void* SharedLibrary::symbol(const char* name) const { return dlsym(handle_.get(), name); }

void SharedLibrary::Traits::close(Handle handle) noexcept { dlclose(handle); }

}  // namespace nxl
