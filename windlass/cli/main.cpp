#include "windlass/cli/cli.h"

int main(int argc, char** argv) { return windlass::run_program(argc, argv); }
