# A CMake toolchain file for Horovod's build, which halves its time: no debugging symbols, no Gloo for C++11, which
# nothing links when TensorFlow is of C++17, no operations within XLA, which HOROVOD_ENABLE_XLA_OPS would turn on, and not a
# compiler run for each of 60 small files. It also corrects one error, and fits the sources to the profile `current`.

# TensorFlow 2.19 and later: their headers need C++20 with GCC 14, no longer include <stdexcept>, and lack XLA's.
function(hops_fit_tensorflow)
  get_directory_property(version DIRECTORY "${CMAKE_SOURCE_DIR}/horovod/tensorflow" DEFINITION Tensorflow_VERSION)
  if(version VERSION_GREATER_EQUAL "2.19")
    set_target_properties(tensorflow PROPERTIES CXX_STANDARD 20)
    target_compile_options(tensorflow PRIVATE "SHELL:-include stdexcept")
  endif()
  set_source_files_properties("${CMAKE_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc"
    TARGET_DIRECTORY tensorflow PROPERTIES HEADER_FILE_ONLY ON)
endfunction()

# A few compiler runs for all small files.
function(hops_unite_sources)
  set_target_properties(tensorflow PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 13)
  set_source_files_properties("${CMAKE_SOURCE_DIR}/horovod/tensorflow/mpi_ops.cc"
    TARGET_DIRECTORY tensorflow PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_target_properties(compatible17_gloo PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 20)
  # Its class has a name that the other files have for another one.
  set_source_files_properties("${CMAKE_SOURCE_DIR}/third_party/compatible17_gloo/gloo/allreduce_local.cc"
    TARGET_DIRECTORY compatible17_gloo PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# Horovod imports TensorFlow to ask for its flags, and the import compiles thousands of modules. One of them knows the flags.
set(hops_flags_of_tensorflow "import importlib.util, sys, types
def flags_alone():
    place = importlib.util.find_spec('tensorflow').submodule_search_locations[0]
    for name, folder in (('tensorflow', place), ('tensorflow.python', place + '/python')):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__, sys.modules[name].__file__ = [folder], folder + '/__init__.py'
    from tensorflow.python.platform import sysconfig
    sys.modules['tensorflow'].sysconfig, sys.modules['tensorflow'].__version__ = sysconfig, sysconfig._VERSION
try:
    flags_alone()
except Exception:
    for name in [name for name in sys.modules if name.partition('.')[0] == 'tensorflow']:
        del sys.modules[name]
import tensorflow as tf
")

if(PROJECT_NAME STREQUAL "horovod")
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -DNDEBUG" CACHE STRING "")
  cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL
    set_target_properties gloo PROPERTIES EXCLUDE_FROM_ALL TRUE)
  cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL hops_fit_tensorflow)
  set(find_tensorflow "${CMAKE_SOURCE_DIR}/cmake/Modules/FindTensorflow.cmake")
  file(READ "${find_tensorflow}" code)
  string(REPLACE "import tensorflow as tf; " "${hops_flags_of_tensorflow}" code "${code}")
  file(WRITE "${find_tensorflow}" "${code}")
  # Horovod never sets the network interface of a process set, all ranks' included. Its ranks then listen at the address of
  # the host's name, which is 127.0.1.1 on a Debian host, so that those of other hosts cannot connect.
  set(gloo_context "${CMAKE_SOURCE_DIR}/horovod/common/gloo/gloo_context.cc")
  file(READ "${gloo_context}" code)
  string(REPLACE "assert(global_context.IsEnabled());\n"
    "assert(global_context.IsEnabled());\n  gloo_iface_ = global_context.gloo_iface_;\n" corrected "${code}")
  string(FIND "${corrected}" "gloo_iface_ = global_context.gloo_iface_;" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "${gloo_context} has other code than Horovod 0.28.1; look whether it sets gloo_iface_ by now")
  elseif(NOT code MATCHES "gloo_iface_ = global_context")
    file(WRITE "${gloo_context}" "${corrected}")
  endif()
  if(NOT DEFINED ENV{HOROVOD_GPU_OPERATIONS})
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL hops_unite_sources)
  endif()
endif()
