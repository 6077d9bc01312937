// The linear kernels of kernels_avx2_vnni_on_avx512.cpp.
#define avx2_vnni avx2_vnni_on_avx512

#include "cpu/linear_avx2_vnni.cpp"
