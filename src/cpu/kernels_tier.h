// What kernels.inl needs outside the namespace of its tier.
#pragma once

#include <bit>
#include <cstddef>
#include <limits>

#include "base/limits.h"
#include "base/math.h"
#include "cpu/attention.h"
#include "cpu/kernels.h"
#include "cpu/linear.h"
#include "cpu/vector.h"
