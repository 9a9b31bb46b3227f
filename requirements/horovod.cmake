# What Horovod's build leaves out and draws together (a CMake toolchain file; it changes no code): debugging symbols, a
# Gloo for C++11 that nothing links when TensorFlow is of C++17, and a compiler run for each of 25 small files. It halves
# the build.

if(PROJECT_NAME STREQUAL "horovod")
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -DNDEBUG" CACHE STRING "")
  cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL
    set_target_properties gloo PROPERTIES EXCLUDE_FROM_ALL TRUE)
  if(NOT DEFINED ENV{HOROVOD_GPU_OPERATIONS})
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL
      set_target_properties tensorflow PROPERTIES UNITY_BUILD ON)
    # Those of XLA mean another namespace by the same name.
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL
      set_source_files_properties
      "${CMAKE_SOURCE_DIR}/horovod/tensorflow/mpi_ops.cc" "${CMAKE_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc"
      TARGET_DIRECTORY tensorflow PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endif()
