// Reader of tokenizer.json files, as the Rust library "tokenizers" writes them: BPE models.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/text/json_tokenizer.h"

namespace eddy {

// InvalidArgument with "<key> is <value>; <what is supported>". A component or key that is not
// known is refused, never passed over.
absl::StatusOr<std::unique_ptr<const Tokenizer>> ReadTokenizerJson(std::string_view file_content);

}  // namespace eddy
