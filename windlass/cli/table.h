// Aligned text tables live in base/, so that reports can use them.
#pragma once

#include "windlass/base/table.h"
