// SPDX-License-Identifier: Apache-2.0
// Opening libraries and owning handles.
#include "core/shared_library.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include "core/dtype.h"
#include "core/error.h"

namespace nxl {
namespace {

TEST(SharedLibrary, FindsSymbolsAndMoves) {
  SharedLibrary library = SharedLibrary::open("libm.so.6");
  auto* const cosine = reinterpret_cast<double (*)(double)>(library.symbol("cos"));
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine(0.0), 1.0);
  EXPECT_EQ(library.symbol("no_such_symbol"), nullptr);
  SharedLibrary moved = std::move(library);
  EXPECT_TRUE(moved);
  EXPECT_EQ(moved.path(), "libm.so.6");
}

TEST(SharedLibrary, MissingFileIsUnavailableAndNamed) {
  try {
    SharedLibrary::open("/nonexistent/libnone.so");
    FAIL() << "opened a library that does not exist";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("/nonexistent/libnone.so"), std::string::npos);
  }
}

TEST(SharedLibrary, KnowsTheFolderOfAnAddress) {
  const std::string folder = SharedLibrary::directory_of(reinterpret_cast<const void*>(&dtype_name));
  EXPECT_EQ(access((folder + "/libnxl_runtime.so").c_str(), R_OK), 0) << folder;
}

TEST(UniqueFd, ClosesOnceAndMovesEmpty) {
  UniqueFd first(open("/dev/null", O_RDONLY));
  ASSERT_TRUE(first);
  const int number = first.get();
  UniqueFd second = std::move(first);
  EXPECT_FALSE(first);
  EXPECT_EQ(second.get(), number);
  EXPECT_NE(fcntl(number, F_GETFD), -1);
  second.reset();
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
}

}  // namespace
}  // namespace nxl
