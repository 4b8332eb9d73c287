// The part of CUDA C++ that generated kernels use, for a host compiler.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

#define __global__ __attribute__((noinline, visibility("hidden")))
#define __device__
#define __host__
#define __forceinline__ inline
#define __inline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __grid_constant__

#include "operations.h"
#include "vector_types.h"
#include "half_types.h"
#include "math_functions.h"
#include "thread_functions.h"
#include "ptx.h"
#include "tensor_map.h"
