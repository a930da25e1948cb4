# The words in which the folders describe themselves.

option(EDDY_SERVER "Build what links gRPC: proto, server, client and their tests" ON)
option(EDDY_CUDA "Build the CUDA back end, libeddy_cuda.so, and its tests" OFF)
set(EDDY_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them")

set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# dlopen finds libeddy_cuda.so beside the program that asks for it.
set(CMAKE_BUILD_RPATH "\$ORIGIN")

# Standard, include root and warnings of all our own code; generated code does without.
add_library(eddy_options INTERFACE)
target_compile_features(eddy_options INTERFACE cxx_std_20)
target_include_directories(eddy_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(eddy_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wno-sign-conversion;-Werror>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 at -O3 warns falsely about the concatenation of strings (GCC bug 105651).
  target_compile_options(eddy_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(EDDY_SANITIZE)
  target_compile_options(eddy_options INTERFACE -fsanitize=${EDDY_SANITIZE}
                         -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(eddy_options INTERFACE -fsanitize=${EDDY_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ 12 under sanitizers warns falsely about std::optional<absl::Status>.
    target_compile_options(eddy_options INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()

# eddy_library(NAME engine SRCS a.cc ... DEPS eddy::base ...): the target eddy::engine.
function(eddy_library)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_library(eddy_${ARG_NAME} STATIC ${ARG_SRCS})
  add_library(eddy::${ARG_NAME} ALIAS eddy_${ARG_NAME})
  target_link_libraries(eddy_${ARG_NAME} PUBLIC eddy_options ${ARG_DEPS})
endfunction()

# eddy_test(NAME engine SRCS a_test.cc ... DEPS eddy::engine ...): one program, each of its tests
# known to ctest. Tests run in the source folder, so that they find tests/golden.
function(eddy_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SRCS;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)  # for sanitizers on a busy machine
  endif()
  add_executable(${ARG_NAME}_test ${ARG_SRCS})
  target_link_libraries(${ARG_NAME}_test PRIVATE eddy_options ${ARG_DEPS} GTest::gmock_main)
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME}_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${ARG_NAME} PROPERTIES TIMEOUT ${ARG_TIMEOUT}
                       ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp")
endfunction()

# Server and plugin are halves of one build: this names what they must share, the contracts between
# them, so that halves of different builds refuse each other.
file(GLOB contracts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*.h)
set(digests "${PROJECT_VERSION}")
foreach(contract IN LISTS contracts)
  file(SHA256 ${contract} digest)
  string(APPEND digests " ${digest}")
endforeach()
string(SHA256 EDDY_BUILD_ID "${digests} ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
string(SUBSTRING ${EDDY_BUILD_ID} 0 16 EDDY_BUILD_ID)
