# Run by CTest for each test program: `program`, `prefix` and `sanitized` are set. Adds the suites that the program
# lists; of suites whose name ends in Slow, each case. All but each fourth of these have the label `rest`, too:
# `make test` leaves them to `make test-slow`.
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

# Suites that drive the program take ten times as long under a sanitizer. There they have a tenth of their cases, and
# those of folders whose suites the release tree runs, too, a third, unless everything is tried
# (windlass/base/test_effort.h). GoogleTest counts the cases of one suite in turn.
# Threads of kernels that wait for work must not keep other tests from theirs: spinning takes three times the work.
set(environment OMP_WAIT_POLICY=passive)
set(shards "")
if(sanitized AND NOT DEFINED ENV{WINDLASS_THOROUGH})
  if(prefix STREQUAL "tests")
    set(shards GTEST_TOTAL_SHARDS=10 GTEST_SHARD_INDEX=0)
  elseif(prefix MATCHES "^(runtime|search)$")
    set(shards GTEST_TOTAL_SHARDS=3 GTEST_SHARD_INDEX=0)
  endif()
endif()

# "Suite." or "Suite/0.  # TypeParam = ...", then its cases: "  Case" or "  Case/0  # GetParam() = ...".
file(STRINGS "${listing}" lines REGEX "^(  )?[A-Za-z0-9_/]+\\.?(  #.*)?$")
foreach(line IN LISTS lines)
  string(REGEX MATCH "^ *[A-Za-z0-9_/]+" name "${line}")
  if(NOT name MATCHES "^ ")
    set(suite "${name}")
    set(number 0)
    if(NOT suite MATCHES "Slow$")
      add_test("${prefix}.${suite}" "${program}" "--gtest_filter=${suite}.*")
      # Those that mostly wait for one another begin first, so that others run beside them; then the longest.
      set(cost 0)
      if(suite MATCHES "Ranks|Hosts")
        set(cost 2000)
      elseif(prefix STREQUAL "tests" OR suite MATCHES "EveryOp$|EveryMethod$|ManyDevices$|RunTasks$|^Export$")
        set(cost 50)
      endif()
      # Suites by kind of op keep all kinds.
      set(own "${environment}")
      if(NOT suite MATCHES "^Kinds/")
        list(APPEND own ${shards})
      endif()
      set_tests_properties("${prefix}.${suite}" PROPERTIES COST ${cost} TIMEOUT 3600 ENVIRONMENT "${own}")
    endif()
  elseif(suite MATCHES "Slow$")
    string(STRIP "${name}" name)
    add_test("${prefix}.${suite}.${name}" "${program}" "--gtest_filter=${suite}.${name}")
    math(EXPR turn "${number} % 4")
    math(EXPR number "${number} + 1")
    set(labels slow)
    if(turn GREATER 0)
      list(APPEND labels rest)
    endif()
    set_tests_properties("${prefix}.${suite}.${name}" PROPERTIES COST 100 TIMEOUT 3600
      LABELS "${labels}" ENVIRONMENT "${environment};${shards}")
  endif()
endforeach()
