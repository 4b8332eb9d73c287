/* Runs the model of test_library_folder.py in C in all ways; prints a line for each. */
#include <stdio.h>
#include <string.h>

#include "small.h"

static float x[4 * 6], scale = 2, z[4 * 3];
static int64_t rows_shape[] = {4, 6}, z_shape[] = {4, 3};
static DLTensor given = {x, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, rows_shape, NULL, 0};
static DLTensor given_scale = {&scale, {kDLCPU, 0}, 0, {kDLFloat, 32, 1}, NULL, NULL, 0};
static DLTensor wanted = {z, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, z_shape, NULL, 0};
static const DLTensor *const inputs[SMALL_NUM_INPUTS] = {&given, &given_scale};

static void print_z(const TvmxModel *model) {
  const DLTensor *found = tvmx_output(model, 0);
  const float *values = (const float *)((char *)found->data + found->byte_offset);
  printf("z %d", values == wanted.data);
  for (int i = 0; i < 3 * found->shape[0]; ++i) printf(" %.9g", values[i]);
  printf("\n");
}

static void run(TvmxModel *model, const DLTensor *const *outputs) {
  if (tvmx_run(model, inputs, outputs) == 0) {
    print_z(model);
  } else {
    printf("%s\n", tvmx_last_error());
  }
}

int main(int argc, char **argv) {
  if (argc < 2) return 1;
  if (!tvmx_load(&small_spec, "nowhere", 0)) printf("%s\n", tvmx_last_error());
  TvmxModelSpec elsewhere = small_spec;
  elsewhere.cpu_flags = "nosuch";
  if (!tvmx_load(&elsewhere, argv[1], 0)) printf("%s\n", tvmx_last_error());
  TvmxModel *first = tvmx_load(&small_spec, argv[1], 0);
  if (!first) return printf("%s\n", tvmx_last_error()), 1;
  TvmxModel *model = tvmx_clone(first);
  tvmx_free(first);
  for (int i = 0; i < 24; ++i) x[i] = 0.25f * (float)(i % 7) - 0.5f;

  const DLTensor *direct[SMALL_NUM_OUTPUTS] = {&wanted, NULL};
  run(model, NULL);
  run(model, direct);
  rows_shape[0] = 2;
  run(model, direct);
  z_shape[0] = 2;
  run(model, direct);
  /* The result goes where the input is: it is copied when all of the input has been read. */
  wanted.data = x;
  run(model, direct);
  printf("copied %d\n", memcmp(z, x, 2 * 3 * sizeof(float)) == 0);
  given.dtype.bits = 64;
  run(model, NULL);
  given.dtype.bits = 32;
  int64_t columns_first[] = {1, 2};
  given.strides = columns_first;
  run(model, NULL);
  tvmx_free(model);
  return 0;
}
