// SPDX-License-Identifier: Apache-2.0
// Group: the ranks that do one collective, and the one thing they do to each other: exchange pieces, in rounds.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace nxl::host {

class World;

// What a member is doing, compared among members in every round: a difference is an error, not a wrong result.
struct Signature {
  uint32_t op = 0;      // position in kCollectiveNames
  uint32_t detail = 0;  // dtype, or root
  uint64_t bytes = 0;   // of the whole collective
  bool operator==(const Signature&) const = default;
};
inline constexpr const char* kCollectiveNames[] = {"all_reduce", "all_gather",           "reduce_scatter",
                                                   "all_to_all", "collective_broadcast", "barrier"};
inline constexpr Signature kJoining{UINT32_MAX, 0, 0};  // for messages: the group's first collective
std::string describe(const Signature& signature);

// One round's outgoing bytes: the same piece for every member, or (`split`) as many pieces, the i-th for member i.
struct Outgoing {
  const std::byte* data = nullptr;
  size_t piece_bytes = 0;
  bool split = false;
  size_t stride = 0;  // bytes from one piece to the next when split
  int sender = -1;    // only this member has data; -1: all have

  const std::byte* piece(size_t member) const { return split ? data + member * stride : data; }
  bool sent_by(size_t member) const { return sender < 0 || static_cast<size_t>(sender) == member; }
};

class Group {
 public:
  // `from[i]` is what member i sent to this one; valid during the call. For i == me() it points into the caller's data.
  using Incoming = std::function<void(const std::byte* const* from)>;

  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::vector<uint32_t>& members() const { return members_; }  // world ranks
  size_t size() const { return members_.size(); }
  size_t me() const { return me_; }  // index in members()

  // The most bytes that one round may send: the piece, or all pieces together when split.
  size_t round_bytes() const { return size() <= 4 ? size_t{2} << 20 : size_t{512} << 10; }

  // One at a time, by whoever holds this. A group that failed once fails at once from then on.
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  // Blocks until every member is in the same round. Throws Error(EXEC_HW_ERR_COLLECTIVES) that names the rank when a
  // member is gone, does something else or does not come within the time limit.
  void round(const Signature& signature, const Outgoing& outgoing, const Incoming& incoming);

 protected:
  Group(World& world, std::vector<uint32_t> members, size_t me)
      : world_(world), members_(std::move(members)), me_(me) {}
  virtual void exchange(const Signature& signature, const Outgoing& outgoing, const Incoming& incoming) = 0;
  // Tells the other members that this one gives up; never throws.
  virtual void leave(const std::string& reason) noexcept = 0;

  [[noreturn]] void fail_waiting(size_t member, const Signature& signature, const std::string& why) const;
  [[noreturn]] void fail_disagreeing(size_t member, const Signature& theirs, const Signature& ours) const;

  World& world_;
  const std::vector<uint32_t> members_;
  const size_t me_;

 private:
  std::mutex mutex_;
  std::string broken_;
};

// Joins the other members: blocks until all of them have come, for at most the world's time limit. `name` is the same
// on every member and of no other group.
std::unique_ptr<Group> join_shared_memory(World& world, std::vector<uint32_t> members, size_t me, uint64_t name);
std::unique_ptr<Group> join_tcp(World& world, std::vector<uint32_t> members, size_t me, uint64_t name);

}  // namespace nxl::host
