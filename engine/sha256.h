#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "openssl/evp.h"

namespace eddy {

// SHA-256 of what is added, in order. Not thread-safe.
class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;
  Sha256();
  void Add(std::span<const std::byte> bytes);
  // Text and numbers carry their length, so that no two sequences of calls add the same bytes.
  void AddText(std::string_view text);
  void AddNumber(int64_t number);
  Digest Finish();  // once, last

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

}  // namespace eddy
