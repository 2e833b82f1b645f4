// SPDX-License-Identifier: Apache-2.0
// Frames, fields, messages and proofs: what goes in comes out, and nothing else is accepted.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>

#include "core/crc32c.h"
#include "core/error.h"
#include "kv/messages.h"
#include "kv/sample_frames.h"

namespace nxl::kv {
namespace {

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return error.what();
  }
  return "";
}

std::vector<std::byte> frame_bytes(FrameType type, const Body& body) {
  FrameHeader header;
  header.type = type;
  header.session = 7;
  header.sequence = 3;
  return encode_frame(header, body);
}

TEST(Frame, ArrivesInPiecesOfAnySize) {
  const auto one = frame_bytes(FrameType::kNotify, NotifyMessage{5, NotifyKind::kMessage, "hello"}.encode());
  std::vector<std::byte> stream;
  for (int i = 0; i < 3; ++i) stream.insert(stream.end(), one.begin(), one.end());
  for (size_t step = 1; step <= stream.size(); ++step) {
    FrameParser parser;
    int frames = 0;
    for (size_t at = 0; at < stream.size(); at += step) {
      parser.append(std::span(stream).subspan(at, std::min(step, stream.size() - at)));
      while (const auto frame = parser.next()) {
        ++frames;
        EXPECT_EQ(frame->header.type, FrameType::kNotify);
        EXPECT_EQ(frame->header.session, 7u);
        EXPECT_EQ(NotifyMessage::decode(frame->body).payload, "hello");
      }
    }
    EXPECT_EQ(frames, 3);
    EXPECT_EQ(parser.buffered(), 0u);
  }
}

TEST(Frame, NoFlippedBitIsAccepted) {
  const auto good = frame_bytes(FrameType::kWriteStatus, WriteStatusMessage{1, WriteState::kDone, {}, "m", 9}.encode());
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] ^= std::byte{static_cast<uint8_t>(1u << (bit % 8))};
    FrameParser parser;
    parser.append(bad);
    EXPECT_THROW(static_cast<void>(parser.next()), Error) << "bit " << bit;
  }
}

TEST(Frame, AnotherMajorVersionIsNamed) {
  FrameHeader header;
  header.major = 9;
  header.type = FrameType::kHello;
  FrameParser parser;
  parser.append(encode_frame(header, {}));
  EXPECT_NE(refusal([&] { parser.next(); }).find("the peer speaks 9.0, this agent 1.0"), std::string::npos);
  header.type = FrameType::kRefuse;
  FrameParser other;
  other.append(encode_frame(header, ReasonMessage{"no", false}.encode()));
  EXPECT_EQ(ReasonMessage::decode(other.next()->body).text, "no");
}

TEST(Frame, BodiesAreBoundedBeforeTheyArrive) {
  FrameParser parser;
  const std::vector<std::byte> body(kMaxBodyBytesBeforeProof + 1);
  const auto bytes = frame_bytes(FrameType::kHello, body);
  parser.append(std::span(bytes).first(kFrameHeaderBytes));
  EXPECT_NE(refusal([&] { parser.next(); }).find("the limit is 16384"), std::string::npos);
}

TEST(Field, UnknownOnesAreSkippedUnlessCritical) {
  FieldWriter harmless;
  harmless.number(900, 1).number(kCritical | 1, 77);
  EXPECT_EQ(NumberMessage::decode(harmless.take()).value, 77u);
  FieldWriter critical;
  critical.number(kCritical | 900, 1);
  EXPECT_NE(refusal([body = critical.take()] { NumberMessage::decode(body); }).find("critical field 900"),
            std::string::npos);
}

TEST(Message, EveryKindSurvivesTheWire) {
  for (const auto& [type, body] : test::sample_bodies()) {
    EXPECT_EQ(test::decode_and_encode(type, body), body) << frame_name(type);
  }
}

TEST(Message, EveryTruncationIsRefusedOrDecodes) {
  for (const auto& [type, body] : test::sample_bodies()) {
    for (size_t size = 0; size < body.size(); ++size) {
      try {
        test::decode_and_encode(type, std::span(body).first(size));
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalid) << frame_name(type);
      }
    }
  }
}

TEST(Auth, HmacKnowsTheVectorsOfRfc4231) {
  const auto hex = [](const Sha256Digest& digest) {
    std::string text;
    for (const uint8_t byte : digest) {
      char two[3];
      std::snprintf(two, sizeof two, "%02x", byte);
      text += two;
    }
    return text;
  };
  const auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text.data(), text.size())); };
  const std::string key1(20, '\x0b'), text1 = "Hi There";
  EXPECT_EQ(hex(hmac_sha256(bytes(key1), bytes(text1))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  const std::string key6(131, '\xaa'), text6 = "Test Using Larger Than Block-Size Key - Hash Key First";
  EXPECT_EQ(hex(hmac_sha256(bytes(key6), bytes(text6))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Auth, EverySecretDependsOnAllThatBothSidesSaid) {
  Transcript base{"a", "b", {1, 2}, {3, 4}, {}, {}, 5};
  const std::vector<std::byte> key(32, std::byte{1});
  const Secret secret = base.derive(key, "frames");
  EXPECT_EQ(secret, base.derive(key, "frames"));
  EXPECT_NE(secret, base.derive(key, "data"));
  EXPECT_NE(secret, base.derive(std::vector<std::byte>(32, std::byte{2}), "frames"));
  Transcript other = base;
  other.acceptor_incarnation[1] = 9;
  EXPECT_NE(secret, other.derive(key, "frames"));
  other = base;
  other.connector_nonce[31] = 1;
  EXPECT_NE(secret, other.derive(key, "frames"));
  other = base;
  other.connector = "";
  other.acceptor = "ab";
  EXPECT_NE(secret, other.derive(key, "frames"));
}

TEST(Auth, KeyFilesMustBePrivate) {
  const std::string path = ::testing::TempDir() + "kv_key_" + std::to_string(::getpid());
  std::ofstream(path) << "0123456789abcdef0123\n";
  ::chmod(path.c_str(), 0644);
  EXPECT_NE(refusal([&] { load_key_file(path); }).find("mode 0644"), std::string::npos);
  ::chmod(path.c_str(), 0600);
  EXPECT_EQ(load_key_file(path).size(), 20u);
  std::ofstream(path) << "short";
  EXPECT_NE(refusal([&] { load_key_file(path); }).find("holds 5 bytes"), std::string::npos);
  ::unlink(path.c_str());
  EXPECT_NE(refusal([&] { load_key_file(path); }).find(path), std::string::npos);
  EXPECT_NE(refusal([&] { load_key_file("/dev/null"); }).find("not a regular file"), std::string::npos);
}

}  // namespace
}  // namespace nxl::kv
