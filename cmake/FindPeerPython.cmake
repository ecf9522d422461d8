# Finds a Python that imports torch, torchvision and onnx: the peer the end-to-end tests compare with.
# Sets PeerPython_FOUND and PEER_PYTHON. Only success is remembered between runs of CMake.

if(NOT PEER_PYTHON)
  find_program(path_python python3 NO_CACHE)
  foreach(candidate IN ITEMS /usr/bin/python3 ${path_python})
    execute_process(COMMAND "${candidate}" -c "import torch, torchvision, onnx"
      RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
    if(result EQUAL 0)
      set(PEER_PYTHON "${candidate}" CACHE FILEPATH "Python with torch, torchvision and onnx" FORCE)
      break()
    endif()
  endforeach()
endif()

if(PEER_PYTHON)
  set(PeerPython_FOUND TRUE)
  message(STATUS "Python tests run with ${PEER_PYTHON}")
else()
  set(PeerPython_FOUND FALSE)
  message(STATUS "Python tests are left out: no python3 imports torch, torchvision and onnx")
endif()
