#include "engine/sha256.h"

#include "base/check.h"

namespace eddy {

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  EDDY_CHECK(context_ != nullptr);
  EDDY_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::Add(std::span<const std::byte> bytes) {
  EDDY_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

void Sha256::AddText(std::string_view text) {
  AddNumber(static_cast<int64_t>(text.size()));
  Add(std::as_bytes(std::span(text.data(), text.size())));
}

void Sha256::AddNumber(int64_t number) {
  std::array<std::byte, 8> bytes;  // least significant first, whatever the machine
  for (size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<std::byte>(static_cast<uint64_t>(number) >> (8 * i));
  }
  Add(bytes);
}

Sha256::Digest Sha256::Finish() {
  Digest digest;
  EDDY_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
  return digest;
}

}  // namespace eddy
