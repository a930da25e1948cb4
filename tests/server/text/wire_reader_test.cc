// Proves that fields are read as they were written and that no read passes the end of the message.
#include "server/text/wire_reader.h"

#include <gtest/gtest.h>

#include <string>

namespace eddy {
namespace {

using Type = WireReader::Type;

TEST(WireReader, ReadsTheFourTypes) {
  const std::string message("\x08\x96\x01\x12\x02hi\x1D\x00\x00\x80\x3F\x21\x01\0\0\0\0\0\0\0", 21);
  WireReader reader(message);
  auto field = reader.Next();
  ASSERT_TRUE(field.ok());
  EXPECT_EQ(field->number, 1u);
  EXPECT_EQ(field->value, 150u);
  field = reader.Next();
  ASSERT_TRUE(field.ok());
  EXPECT_EQ(field->bytes, "hi");
  field = reader.Next();
  ASSERT_TRUE(field.ok());
  EXPECT_EQ(field->type, Type::kFixed32);
  EXPECT_EQ(field->value, 0x3F800000u);
  field = reader.Next();
  ASSERT_TRUE(field.ok());
  EXPECT_EQ(field->value, 1u);
  EXPECT_TRUE(reader.AtEnd());
}

TEST(WireReader, RefusesWhatIsCutOffOrUnknown) {
  for (const char* message : {"\x08", "\x08\x96", "\x12\x05hi", "\x1D\x01\x02", "\x21\x01", "\x0B",
                              "\x02\x01", "\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF",
                              "\x12\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"}) {
    WireReader reader(message);
    EXPECT_FALSE(reader.Next().ok());
  }
}

}  // namespace
}  // namespace eddy
