# cmake --install: the program with its man pages and completions, the library for other programs, the
# runtime library that the program opens, what there is to read, and the data of the examples. The tree may lie anywhere and be moved: the program finds the library from where it is
# itself, in WINDLASS_LIBRARY_FOLDER, a path that starts at the program's folder.

include(GNUInstallDirs)
set(library_folder "${CMAKE_INSTALL_LIBDIR}/windlass")
cmake_path(ABSOLUTE_PATH library_folder BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}"
  OUTPUT_VARIABLE full_library_folder)
file(RELATIVE_PATH WINDLASS_LIBRARY_FOLDER "${CMAKE_INSTALL_FULL_BINDIR}" "${full_library_folder}")

# libwindlass.a and its headers, for find_package(windlass): the stages from model to report as one library.
# Made of objects that are there already; programs that use it link nothing of libtorch.
function(windlass_library_package)
  set(folders base graph model machine cost strategy task sim plan search report export data run)
  list(TRANSFORM folders REPLACE "(.+)" "$<TARGET_OBJECTS:windlass_\\1>" OUTPUT_VARIABLE objects)
  add_library(windlass_package STATIC ${objects})
  set_target_properties(windlass_package PROPERTIES OUTPUT_NAME windlass EXPORT_NAME windlass LINKER_LANGUAGE CXX)
  target_compile_features(windlass_package INTERFACE cxx_std_20)
  target_include_directories(windlass_package INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  if(TARGET ONNX::onnx)
    set(onnx ONNX::onnx ONNX::onnx_proto)
  else()
    set(onnx onnx onnx_proto)
  endif()
  target_link_libraries(windlass_package INTERFACE fmt::fmt nlohmann_json::nlohmann_json ${onnx}
    protobuf::libprotobuf Threads::Threads ${CMAKE_DL_LIBS})
  set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/windlass")
  install(TARGETS windlass_package EXPORT windlassTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    COMPONENT development)
  install(EXPORT windlassTargets NAMESPACE windlass:: DESTINATION "${package_folder}" COMPONENT development)
  foreach(folder IN LISTS folders)
    install(DIRECTORY "windlass/${folder}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/windlass"
      COMPONENT development FILES_MATCHING PATTERN "*.h")
  endforeach()
  install(FILES windlass/windlass.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/windlass" COMPONENT development)
  include(CMakePackageConfigHelpers)
  file(STRINGS windlass/base/version.h version REGEX "kVersion")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" version "${version}")
  set(WINDLASS_VERSION "${version}" PARENT_SCOPE)
  set(generated "${CMAKE_BINARY_DIR}/generated")
  write_basic_package_version_file("${generated}/windlassConfigVersion.cmake" VERSION "${version}"
    COMPATIBILITY SameMinorVersion)
  configure_package_config_file(cmake/windlassConfig.cmake.in "${generated}/windlassConfig.cmake"
    INSTALL_DESTINATION "${package_folder}")
  install(FILES "${generated}/windlassConfig.cmake" "${generated}/windlassConfigVersion.cmake"
    DESTINATION "${package_folder}" COMPONENT development)
endfunction()

# Man pages and completions, written by the program itself when it is installed.
function(windlass_shell_files)
  set(made "${CMAKE_BINARY_DIR}/generated/shell")
  install(CODE "
    file(MAKE_DIRECTORY \"${made}\")
    execute_process(COMMAND \"$<TARGET_FILE:windlass>\" man --folder \"${made}/man1\" COMMAND_ERROR_IS_FATAL ANY)
    foreach(shell bash zsh fish)
      execute_process(COMMAND \"$<TARGET_FILE:windlass>\" completion \${shell}
        OUTPUT_FILE \"${made}/windlass.\${shell}\" COMMAND_ERROR_IS_FATAL ANY)
    endforeach()" COMPONENT program)
  install(DIRECTORY "${made}/man1" DESTINATION "${CMAKE_INSTALL_MANDIR}" COMPONENT program)
  set(data "${CMAKE_INSTALL_DATADIR}")
  install(FILES "${made}/windlass.bash" DESTINATION "${data}/bash-completion/completions" RENAME windlass
    COMPONENT program)
  install(FILES "${made}/windlass.zsh" DESTINATION "${data}/zsh/vendor-completions" RENAME _windlass
    COMPONENT program)
  install(FILES "${made}/windlass.fish" DESTINATION "${data}/fish/vendor_completions.d" COMPONENT program)
endfunction()

# cpack -G DEB in the build folder: one package with all of it; what it needs is read from the binaries.
macro(windlass_debian_package)
  set(CPACK_PACKAGE_NAME windlass)
  set(CPACK_PACKAGE_VERSION "${WINDLASS_VERSION}")
  set(CPACK_PACKAGE_CONTACT "the developers of windlass <windlass@localhost>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "plans and carries out the training of neural networks inside memory limits")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_GENERATOR DEB)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  # The runtime library finds what it calls in the program that opens it.
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${CMAKE_BINARY_DIR}")
  include(CPack)
endmacro()

function(windlass_install)
  windlass_library_package()
  windlass_shell_files()
  windlass_debian_package()
  install(TARGETS windlass RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT program)
  install(TARGETS windlass_runtime_library LIBRARY DESTINATION "${library_folder}" COMPONENT program)
  install(FILES README.md LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT program)
  install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT program FILES_MATCHING PATTERN "*.md")
  install(DIRECTORY examples/library DESTINATION "${CMAKE_INSTALL_DATADIR}/windlass/examples" COMPONENT development)
  install(DIRECTORY examples/data DESTINATION "${CMAKE_INSTALL_DATADIR}/windlass/examples"
    COMPONENT program PATTERN "*.py" EXCLUDE)
  # A libtorch that lies elsewhere is found there by the installed library, too.
  set_target_properties(windlass_runtime_library PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  if(WINDLASS_TESTS)
    add_test(NAME install COMMAND "${CMAKE_COMMAND}" "-Dbuild=${CMAKE_BINARY_DIR}"
      "-Dscratch=${CMAKE_BINARY_DIR}/install_test" "-Dsanitized=${WINDLASS_SANITIZE}"
      "-Dcompiler=${CMAKE_CXX_COMPILER}" -P "${CMAKE_SOURCE_DIR}/tests/install_test.cmake")
    set_tests_properties(install PROPERTIES TIMEOUT 900)
  endif()
endfunction()
