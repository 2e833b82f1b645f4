// SPDX-License-Identifier: Apache-2.0
// nrta_error_tracker_create, _get_list and _destroy.
#include "nrt/error_tracker.h"

#include <utility>

namespace nxl::nrt {

ErrorTracker::ErrorTracker(ErrorTracker&& other) noexcept
    : runtime_(std::move(other.runtime_)), handle_(std::exchange(other.handle_, nullptr)) {}

ErrorTracker& ErrorTracker::operator=(ErrorTracker&& other) noexcept {
  if (this != &other) {
    ErrorTracker old(std::move(*this));
    runtime_ = std::move(other.runtime_);
    handle_ = std::exchange(other.handle_, nullptr);
  }
  return *this;
}

ErrorTracker::~ErrorTracker() {
  if (handle_ == nullptr) return;
  const OpenScope scope(runtime_.get());
  if (scope) runtime_->api().nrta_error_tracker_destroy(handle_);
}

ErrorTracker ErrorTracker::create(std::shared_ptr<Runtime> runtime, int core) {
  ErrorTracker tracker;
  NXL_NRT_CHECK(runtime->api().nrta_error_tracker_create(static_cast<uint32_t>(core), &tracker.handle_),
                "nrta_error_tracker_create", detail::concat("core ", core));
  tracker.runtime_ = std::move(runtime);
  return tracker;
}

std::span<const nrta_error_t> ErrorTracker::list() const noexcept {
  const nrta_error_t* errors = nullptr;
  size_t count = 0;
  if (handle_ == nullptr || runtime_->api().nrta_error_tracker_get_list(handle_, &errors, &count) != NRT_SUCCESS)
    return {};
  return {errors, count};
}

std::string ErrorTracker::reason(nrta_seq_t sequence) const {
  char text[1024] = {};
  if (handle_ == nullptr || runtime_->api().nrt_host_error_text == nullptr ||
      runtime_->api().nrt_host_error_text(handle_, sequence, text, sizeof(text)) != NRT_SUCCESS) {
    return {};
  }
  return text;
}

}  // namespace nxl::nrt
