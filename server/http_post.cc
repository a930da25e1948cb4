#include "server/http_post.h"

#include <curl/curl.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/version.h"

namespace eddy {
namespace {

constexpr size_t kBodyMax = 64 << 10;

size_t TakeBody(char* bytes, size_t size, size_t count, void* body) {
  auto* const text = static_cast<std::string*>(body);
  text->append(bytes, std::min(size * count, kBodyMax - text->size()));
  return size * count;
}

int Milliseconds(absl::Duration duration) {
  const absl::Duration whole = absl::Ceil(duration, absl::Milliseconds(1));
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(whole), 0, 60'000));
}

}  // namespace

struct HttpPost::Handles {
  CURLM* multi = nullptr;
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
};

HttpPost::HttpPost(const std::string& url) : handles_(std::make_unique<Handles>()) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  EDDY_CHECK(ready == CURLE_OK);
  handles_->multi = curl_multi_init();
  handles_->easy = curl_easy_init();
  EDDY_CHECK(handles_->multi != nullptr && handles_->easy != nullptr);
  handles_->headers = curl_slist_append(nullptr, "Content-Type: application/json");
  // Without this, libcurl waits for leave to send what is large.
  handles_->headers = curl_slist_append(handles_->headers, "Expect:");
  CURL* const easy = handles_->easy;
  const std::string agent = absl::StrCat("eddy/", std::string(Version()));
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_USERAGENT, agent.c_str());
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, handles_->headers);
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http");
  curl_easy_setopt(easy, CURLOPT_PROXY, "");
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);  // a name that is being looked up is left alone
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, TakeBody);
}

HttpPost::~HttpPost() {
  curl_easy_cleanup(handles_->easy);
  curl_multi_cleanup(handles_->multi);
  curl_slist_free_all(handles_->headers);
}

HttpPost::Answer HttpPost::Send(const std::string& json,
                                absl::FunctionRef<absl::Duration()> time_left) {
  CURL* const easy = handles_->easy;
  Answer answer;
  curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(json.size()));
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, json.data());
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &answer.body);
  CURLM* const multi = handles_->multi;
  CURLMcode fault = curl_multi_add_handle(multi, easy);
  const CURLMsg* end = nullptr;
  for (int running = 1, more = 0; fault == CURLM_OK;) {
    const absl::Duration left = time_left();
    if (left <= absl::ZeroDuration()) break;
    fault = curl_multi_perform(multi, &running);
    if (running == 0) end = curl_multi_info_read(multi, &more);
    if (fault != CURLM_OK || end != nullptr) break;
    fault = curl_multi_poll(multi, nullptr, 0, Milliseconds(left), nullptr);
  }
  if (fault != CURLM_OK) {
    answer.error = curl_multi_strerror(fault);
  } else if (end == nullptr) {
    answer.error = curl_easy_strerror(CURLE_OPERATION_TIMEDOUT);
  } else if (end->data.result != CURLE_OK) {
    answer.error = curl_easy_strerror(end->data.result);
  } else {
    long status = 0;
    curl_off_t retry_after = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &retry_after);
    answer.status = static_cast<int>(status);
    if (retry_after > 0) answer.retry_after = absl::Seconds(retry_after);
  }
  curl_multi_remove_handle(multi, easy);
  return answer;
}

void HttpPost::Wake() { curl_multi_wakeup(handles_->multi); }

}  // namespace eddy
