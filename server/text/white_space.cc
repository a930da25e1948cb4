#include "server/text/white_space.h"

#include <utf8proc.h>

namespace eddy {

bool IsWhiteSpace(char32_t c) {
  // White_Space is what separates, and these six control characters (Unicode, PropList.txt).
  if ((c >= 0x09 && c <= 0x0D) || c == 0x85) return true;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

}  // namespace eddy
