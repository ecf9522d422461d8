# cmake --install: the program, the runtime library that it opens, what there is to read, and the data of
# the examples. The tree may lie anywhere and be moved: the program finds the library from where it is
# itself, in WINDLASS_LIBRARY_FOLDER, a path that starts at the program's folder.

include(GNUInstallDirs)
set(library_folder "${CMAKE_INSTALL_LIBDIR}/windlass")
cmake_path(ABSOLUTE_PATH library_folder BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}"
  OUTPUT_VARIABLE full_library_folder)
file(RELATIVE_PATH WINDLASS_LIBRARY_FOLDER "${CMAKE_INSTALL_FULL_BINDIR}" "${full_library_folder}")

function(windlass_install)
  install(TARGETS windlass RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  install(TARGETS windlass_runtime_library LIBRARY DESTINATION "${library_folder}")
  install(FILES README.md LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
  install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}" FILES_MATCHING PATTERN "*.md")
  install(DIRECTORY examples/data DESTINATION "${CMAKE_INSTALL_DATADIR}/windlass/examples"
    PATTERN "*.py" EXCLUDE)
  # A libtorch that lies elsewhere is found there by the installed library, too.
  set_target_properties(windlass_runtime_library PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  if(WINDLASS_TESTS)
    add_test(NAME install COMMAND "${CMAKE_COMMAND}" "-Dbuild=${CMAKE_BINARY_DIR}"
      "-Dscratch=${CMAKE_BINARY_DIR}/install_test" -P "${CMAKE_SOURCE_DIR}/tests/install_test.cmake")
    set_tests_properties(install PROPERTIES TIMEOUT 900)
  endif()
endfunction()
