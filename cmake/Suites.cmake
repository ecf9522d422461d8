# Run by CTest for each test program: `program` and `prefix` are set. Adds the suites that the program
# lists; of suites whose name ends in Slow, each case.
if(NOT EXISTS "${program}")
  add_test("${prefix}_NOT_BUILT" "${prefix}_NOT_BUILT")
  return()
endif()

set(listing "${program}.suites")
if("${program}" IS_NEWER_THAN "${listing}")
  execute_process(COMMAND "${program}" --gtest_list_tests
    OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE result TIMEOUT 60)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${program} --gtest_list_tests: ${result}\n${text}")
  endif()
  file(WRITE "${listing}" "${text}")
endif()

# "Suite." or "Suite/0.  # TypeParam = ...", then its cases: "  Case" or "  Case/0  # GetParam() = ...".
file(STRINGS "${listing}" lines REGEX "^(  )?[A-Za-z0-9_/]+\\.?(  #.*)?$")
foreach(line IN LISTS lines)
  string(REGEX MATCH "^ *[A-Za-z0-9_/]+" name "${line}")
  if(NOT name MATCHES "^ ")
    set(suite "${name}")
    if(NOT suite MATCHES "Slow$")
      add_test("${prefix}.${suite}" "${program}" "--gtest_filter=${suite}.*")
      set_tests_properties("${prefix}.${suite}" PROPERTIES TIMEOUT 3600)
    endif()
  elseif(suite MATCHES "Slow$")
    string(STRIP "${name}" name)
    add_test("${prefix}.${suite}.${name}" "${program}" "--gtest_filter=${suite}.${name}")
    set_tests_properties("${prefix}.${suite}.${name}" PROPERTIES COST 100 TIMEOUT 3600 LABELS slow)
  endif()
endforeach()
