#include "server/mailbox.h"

#include <utility>

namespace eddy {

Mailbox::Todo Mailbox::Put(Output output, absl::Time now) {
  MutexLock lock(&mu_);
  if (broken_) return {};
  waiting_bytes_ += output.bytes();
  // What can be written at once does not wait, however large it is.
  if (writing_ && waiting_bytes_ > bytes_max_) {
    broken_ = true;
    Drop();
    return {.overflow = true};
  }
  if (waiting_.has_value()) {
    waiting_->Append(std::move(output));
  } else {
    waiting_ = std::move(output);
  }
  return Next(now);
}

Mailbox::Todo Mailbox::End(Ending ending) {
  MutexLock lock(&mu_);
  end_ = std::move(ending);
  return Next(absl::InfinitePast());
}

Mailbox::Todo Mailbox::Written(bool ok, absl::Time now) {
  MutexLock lock(&mu_);
  writing_ = false;
  if (!ok) {
    broken_ = true;
    Drop();
  }
  return Next(now);
}

bool Mailbox::BeginCut(absl::Time since) {
  MutexLock lock(&mu_);
  if (!writing_ || cutting_ || writing_since_ > since) return false;
  cutting_ = true;
  broken_ = true;
  Drop();
  return true;
}

Mailbox::Todo Mailbox::EndCut() {
  MutexLock lock(&mu_);
  cutting_ = false;
  return Next(absl::InfinitePast());
}

int64_t Mailbox::waiting_bytes() const {
  MutexLock lock(&mu_);
  return waiting_bytes_;
}

Mailbox::Todo Mailbox::Next(absl::Time now) {
  if (writing_ || cutting_) return {};
  if (waiting_.has_value()) {
    writing_ = true;
    writing_since_ = now;
    Todo todo{.write = std::move(waiting_)};
    Drop();
    return todo;
  }
  return {.finish = std::exchange(end_, {})};
}

void Mailbox::Drop() {
  waiting_.reset();
  waiting_bytes_ = 0;
}

}  // namespace eddy
