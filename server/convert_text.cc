#include "server/convert_text.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/checks.h"
#include "server/convert_generate.h"

namespace eddy {

std::optional<Error> CheckTokenizeRequest(const v1::TokenizeRequest& request,
                                          const ServedModel& model) {
  if (std::optional<Error> error = CheckModel(request.model(), model)) return error;
  Faults faults;
  CheckText("text", request.text(), &faults);
  if (model.tokenizer == nullptr) {
    faults.Add("NO_TOKENIZER", "text", "text: the model has no tokenizer", {});
  }
  if (!faults.empty()) return faults.ToError();
  return std::nullopt;
}

std::optional<Error> Encode(const v1::TokenizeRequest& request, const ServedModel& model,
                            v1::TokenizeResponse* response) {
  const absl::StatusOr<std::vector<TokenSpan>> spans = model.tokenizer->EncodeSpans(
      request.text(), {.add_bos = !request.encode().omit_bos(),
                       .literal_special_tokens = request.encode().literal_special_tokens()});
  if (!spans.ok()) {
    Faults faults;
    faults.Add("text", absl::StrCat("text: ", spans.status().message()));
    return faults.ToError();
  }
  for (const TokenSpan& span : *spans) {
    response->add_token_ids(static_cast<uint32_t>(span.id));
    if (!request.tokens()) continue;
    v1::TokenSpan* const to = response->add_tokens();
    to->set_token(model.tokenizer->Bytes(span.id));
    to->set_begin(span.begin);
    to->set_end(span.end);
  }
  return std::nullopt;
}

std::optional<Error> CheckDetokenizeRequest(const v1::DetokenizeRequest& request,
                                            const ServedModel& model) {
  if (std::optional<Error> error = CheckModel(request.model(), model)) return error;
  Faults faults;
  CheckTokenIds("token_ids", request.token_ids(), model.info.vocab_size, &faults);
  if (model.tokenizer == nullptr) {
    faults.Add("NO_TOKENIZER", "token_ids", "token_ids: the model has no tokenizer", {});
  }
  if (!faults.empty()) return faults.ToError();
  return std::nullopt;
}

v1::DetokenizeResponse Decode(const v1::DetokenizeRequest& request, const ServedModel& model) {
  const std::vector<int32_t> ids(request.token_ids().begin(), request.token_ids().end());
  v1::DetokenizeResponse response;
  response.set_text(model.tokenizer->Decode(ids, request.special_tokens()));
  for (const int32_t id : ids) {
    if (!request.special_tokens() && model.tokenizer->IsSpecial(id)) continue;
    response.mutable_raw()->append(model.tokenizer->Bytes(id));
  }
  return response;
}

}  // namespace eddy
