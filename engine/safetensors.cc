#include "engine/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace eddy {

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < 8) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": too short for a safetensors file"));
  }
  const auto bytes = static_cast<size_t>(info.st_size);
  void* const map = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_error = errno;
  close(fd);
  if (map == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": ", std::strerror(map_error)));
  }
  SafetensorsFile file(path, {static_cast<const std::byte*>(map), bytes});
  EDDY_ASSIGN_OR_RETURN(file.tensors_, ParseSafetensorsHeader(file.map_, bytes, path));
  return file;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      map_(std::exchange(other.map_, {})),
      tensors_(std::move(other.tensors_)) {}

SafetensorsFile::~SafetensorsFile() {
  if (!map_.empty()) munmap(const_cast<std::byte*>(map_.data()), map_.size());
}

void SafetensorsFile::Release(const TensorInfo& tensor) const {
  // Whole pages inside the tensor; what it shares with its neighbours stays.
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = (tensor.begin + page - 1) / page * page;
  const uint64_t end = tensor.end / page * page;
  if (begin >= end) return;
  madvise(const_cast<std::byte*>(map_.data()) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace eddy
