# The CUDA language, for the plugin, its tests and its benchmarks; included if EDDY_CUDA is on.
if(NOT CMAKE_CUDA_COMPILER)
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS /usr/local/cuda/bin REQUIRED)
endif()
# Machine code for what is measured and for older cards; and PTX of the oldest, from which the drivers
# of newer cards make theirs. 80-virtual alone makes every card do that (see .ci/gpu_pack.sh).
set(EDDY_CUDA_ARCHITECTURES "80;90a-real" CACHE STRING "What CUDA code is made for")
set(CMAKE_CUDA_ARCHITECTURES ${EDDY_CUDA_ARCHITECTURES})
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)
