// SPDX-License-Identifier: Apache-2.0
// Both ends of the second process, and the main() that can be either.
#include "kv/server_process.h"

#include <gtest/gtest.h>
#include <spawn.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <thread>

#include "core/crc32c.h"
#include "core/error.h"

extern char** environ;

namespace nxl::kv::test {
namespace {

std::string describe_ticket(const LeaseTicket& t) {
  std::ostringstream out;
  out << t.id << ' ' << t.key[0] << ' ' << t.key[1] << ' ' << t.word << ' ' << t.generation;
  return out.str();
}

class Server {
 public:
  explicit Server(const Settings& options) : memory_(std::stoull(options.at("region_bytes"))) {
    if (const uint64_t seed = std::stoull(options.at("fill")); seed != 0) fill(memory_.span(), seed);
    if (options.contains("touch")) std::memset(memory_.data, 1, memory_.bytes);
    AgentConfig config;
    config.name = options.at("name");
    const auto text = [&](const char* key, std::string& value) {
      if (const auto it = options.find(key); it != options.end()) value = it->second;
    };
    const auto time = [&](const char* key, Milliseconds& value) {
      if (const auto it = options.find(key); it != options.end()) value = Milliseconds(std::stoll(it->second));
    };
    text("bind", config.bind);
    text("key_file", config.key_file);
    time("keep_alive", config.keep_alive);
    time("suspect_after", config.suspect_after);
    time("down_after", config.down_after);
    if (const auto it = options.find("max_notification_bytes"); it != options.end()) {
      config.max_notification_bytes = std::stoull(it->second);
    }
    std::string providers;
    text("providers", providers);
    std::istringstream list(providers);
    for (std::string name; std::getline(list, name, ',');) config.providers.push_back(name);
    agent_ = Agent::create(config);
    agent_->register_region(memory_.describe("pool"));
  }

  std::string endpoint() const { return agent_->endpoint(); }

  std::string obey(const std::string& line) {
    std::istringstream in(line);
    std::string verb;
    in >> verb;
    std::ostringstream out;
    if (verb == "grant") {
      std::string reader;
      int64_t ttl = 0;
      in >> reader >> ttl;
      return describe_ticket(
          agent_->grant("request", std::vector<uint32_t>{1, 2}, std::vector{reader}, Milliseconds(ttl)));
    }
    if (verb == "release") {
      LeaseId id = 0;
      in >> id;
      out << agent_->release_lease(id, "asked").code;
    } else if (verb == "events") {
      for (const LeaseEvent& event : agent_->poll_lease_events(100))
        out << event.id << ':' << lease_end_name(event.end) << ' ';
    } else if (verb == "fill") {
      uint64_t seed = 0;
      in >> seed;
      fill(memory_.span(), seed);
    } else if (verb == "checksum") {
      size_t offset = 0, size = 0;
      in >> offset >> size;
      out << crc32c(memory_.span().subspan(offset, size));
    } else if (verb == "notifications") {
      for (const Notification& n : agent_->poll_notifications(100000)) out << n.peer << ':' << n.payload << ' ';
    } else if (verb == "notify") {
      std::string peer, payload;
      in >> peer >> payload;
      out << agent_->notify(agent_->find_peer(peer), payload).code;
    } else if (verb == "connect") {
      std::string endpoint;
      in >> endpoint;
      peer_ = agent_->connect(endpoint, Milliseconds(20000));
    } else if (verb ==
               "read") {  // COUNT pieces of BYTES, over and over through a source of SOURCE bytes; returns at once
      uint64_t count = 0, bytes = 0, source = 0;
      int64_t deadline = 0;
      in >> count >> bytes >> source >> deadline;
      std::vector<Run> runs;
      for (uint64_t i = 0; i < count; ++i) runs.push_back({0, 0, i * bytes % source, i * bytes, bytes, 0, 0, 1});
      transfer_ = agent_->prepare_read(peer_, std::move(runs));
      out << agent_->post(transfer_, Milliseconds(deadline), "").code;
    } else if (verb == "progress") {
      const TransferStatus status = agent_->check(transfer_);
      out << state_name(status.state) << ' ' << cause_name(status.cause) << ' ' << status.bytes_done;
    } else if (verb == "peers") {
      for (const PeerInfo& peer : agent_->peers()) out << peer.name << ':' << state_name(peer.state) << ' ';
    } else if (verb == "stats") {
      out << agent_->stats_json();
    } else if (verb == "close") {
      agent_->close();
    }
    return out.str();
  }

 private:
  SharedMemory memory_;
  std::unique_ptr<Agent> agent_;
  PeerId peer_ = 0;
  TransferId transfer_ = 0;
};

}  // namespace

int serve(const std::vector<std::string>& arguments) {
  Settings options;
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    options[argument.substr(0, equals)] = argument.substr(equals + 1);
  }
  try {
    Server server(options);
    std::cout << server.endpoint() << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
      std::string answer;
      try {
        answer = server.obey(line);
      } catch (const Error& error) {
        answer = std::string("error ") + error.what();
      }
      std::cout << answer << std::endl;
    }
  } catch (const Error& error) {
    std::cout << "error " << error.what() << std::endl;
    return 1;
  }
  return 0;
}

ServerProcess::ServerProcess(const Settings& options) {
  Settings all{{"name", "prefill"}, {"region_bytes", "1048576"}, {"fill", "1"}};
  for (const auto& [key, value] : options) all[key] = value;
  std::vector<std::string> words{"kv_tests", "--kv-server"};
  for (const auto& [key, value] : all) words.push_back(key + "=" + value);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int in[2], out[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  const int error = ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(in[0]);
  ::close(out[1]);
  to_.reset(in[1]);
  from_.reset(out[0]);
  if (error != 0) throw std::runtime_error("posix_spawn");
  endpoint_ = read_line();
  if (endpoint_.starts_with("error")) throw std::runtime_error(endpoint_);
}

ServerProcess::~ServerProcess() { kill_now(); }

void ServerProcess::signal(int number) const {
  ::kill(pid_, number);
  if (number == SIGSTOP) ::waitpid(pid_, nullptr, WUNTRACED);
}

std::vector<uint16_t> ServerProcess::listening() const {
  std::set<std::string> sockets;
  const std::string folder = "/proc/" + std::to_string(pid_);
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::vector<uint16_t> ports;
  std::ifstream table(folder + "/net/tcp");
  std::string line;
  for (std::getline(table, line); std::getline(table, line);) {
    std::istringstream in(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    in >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
    constexpr const char* kListen = "0A";
    if (state == kListen && sockets.contains(inode)) {
      ports.push_back(static_cast<uint16_t>(std::stoul(local.substr(local.find(':') + 1), nullptr, 16)));
    }
  }
  return ports;
}

void ServerProcess::kill_now() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::string ServerProcess::read_line() {
  while (true) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    char bytes[4096];
    const ssize_t got = ::read(from_.get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw std::runtime_error("the server process is gone");
    buffer_.append(bytes, static_cast<size_t>(got));
  }
}

std::string ServerProcess::ask(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(to_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw std::runtime_error("the server process takes no line");
  }
  return read_line();
}

}  // namespace nxl::kv::test

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  if (argc > 1 && std::string(argv[1]) == "--kv-server") return nxl::kv::test::serve({argv + 2, argv + argc});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
